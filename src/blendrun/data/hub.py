"""Checkpoints from the Hugging Face hub, as folders of its local cache.

Knows which files are wanted and how to explain a failure; what is in them is not its business.
"""

from pathlib import Path

from blendrun.errors import InputError

_SMALL_FILES = ("*.json", "*.jinja")
_WEIGHT_FILES = ("*.safetensors",)
# Second copies of the weights in another layout.
_IGNORED = ("consolidated*", "original/*", "onnx/*", "*/*.safetensors")


def download(model_id: str, weights: bool) -> Path:
    """The local snapshot of a hub model: config and tokenizer files, and safetensors if asked.

    Raises:
        InputError: no such model, no access, or the hub is not reachable and nothing is cached.
    """
    from huggingface_hub import errors, snapshot_download

    # Transport failures come from whichever HTTP library this version of the hub client uses.
    unreachable = (OSError, errors.HfHubHTTPError, getattr(errors, "HTTPError", OSError))
    patterns = [*_SMALL_FILES, *(_WEIGHT_FILES if weights else ())]
    try:
        return Path(
            snapshot_download(model_id, allow_patterns=patterns, ignore_patterns=list(_IGNORED))
        )
    except errors.GatedRepoError as error:
        raise InputError(
            f"access to {model_id} is restricted", "accept its terms on the hub and log in"
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise InputError(
            f"the Hugging Face hub has no model {model_id!r} that you may read",
            "give a Hugging Face id (owner/name), a checkpoint folder or a .gguf file",
        ) from error
    except unreachable as error:
        raise InputError(
            f"cannot download {model_id}: the Hugging Face hub is not reachable",
            "give a local checkpoint folder or a .gguf file, or run once with a network",
        ) from error
