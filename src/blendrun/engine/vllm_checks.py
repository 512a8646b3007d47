"""What vLLM lacks, refused by name before anything runs."""

from importlib.util import find_spec

from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.vllm import INSTALL
from blendrun.errors import InputError


def check_vllm(settings: ExecuteSettings) -> None:
    """Raises InputError where vLLM is not installed, or a setting asks for what it cannot do."""
    refused = {
        "--deterministic": settings.deterministic,
        "--kv-dtype": settings.kv_dtype != "auto",
        "--schedule async": settings.schedule == "async",
        "--no-shared-prefix-attention": not settings.shared_prefix_attention,
    }
    asked = [flag for flag, is_set in refused.items() if is_set]
    if asked:
        raise InputError(
            f"vLLM has nothing like {' and '.join(asked)}",
            "leave it out, or use the native engine",
        )
    if find_spec("vllm") is None:
        raise InputError("--engine vllm needs vLLM, which is not installed", INSTALL)
