"""How many bits a weight of a quantised checkpoint has, as its `config.json` tells.

Only for prices: the weights stay as they are, and are for the engine to read.
"""

from collections.abc import Iterable
from typing import Any

from blendrun.errors import InputError

# where the method alone says it
_BY_METHOD = {"fp8": 8, "fbgemm_fp8": 8, "ptpc_fp8": 8, "experts_int8": 8}
_BY_ALGORITHM = {"FP8": 8, "FP8_PER_CHANNEL_PER_TOKEN": 8, "FP8_PB_WO": 8, "NVFP4": 4, "MXFP8": 8}
_SCALE_BITS = 16  # of each group of weights
_MXFP4_GROUP = 32  # weights that share a scale of 8 bits


def weight_bits(quantised: dict[str, Any]) -> tuple[str, float]:
    """Method and bits of a weight in the layers, scales and zero points of its group included.

    `quantised` is a `quantization_config`, or `compression_config`. Where groups of layers differ,
    those with most bits count.

    Raises:
        InputError: it does not say.
    """
    algorithm = str(quantised.get("quant_algo") or "")
    method = str(quantised.get("quant_method") or algorithm or "unknown method")
    if method == "mxfp4":
        return method, 4 + 8 / _MXFP4_GROUP
    bits = next((value for value in _stated(quantised, method, algorithm) if value), None)
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 16:
        raise InputError(
            f"'quantization_config' in config.json ({method}) does not tell how many bits a weight "
            "has",
            'add its bits: "bits": 4, for example',
        )
    group = _group(quantised)
    return method, bits + ((_SCALE_BITS + bits) / group if group else 0.0)


def _stated(quantised: dict[str, Any], method: str, algorithm: str) -> Iterable[Any]:
    yield quantised.get("bits")
    yield quantised.get("w_bit")
    for bits in (4, 8):  # bitsandbytes
        if quantised.get(f"load_in_{bits}bit") or quantised.get(f"_load_in_{bits}bit"):
            yield bits
    found = [weights.get("num_bits") for weights in _weight_groups(quantised)]
    yield max((bits for bits in found if isinstance(bits, int)), default=None)
    yield _BY_METHOD.get(method)
    yield _BY_ALGORITHM.get(algorithm)


def _group(quantised: dict[str, Any]) -> int:
    """Weights that share a scale; 0 where that is a whole row, or is not said."""
    sizes = [quantised.get("group_size"), *(w.get("group_size") for w in _weight_groups(quantised))]
    return max((size for size in sizes if isinstance(size, int) and size > 0), default=0)


def _weight_groups(quantised: dict[str, Any]) -> list[dict[str, Any]]:
    """What compressed-tensors says of the weights of each group of layers."""
    groups = quantised.get("config_groups")
    each = groups.values() if isinstance(groups, dict) else ()
    found = [group.get("weights") for group in each if isinstance(group, dict)]
    return [weights for weights in found if isinstance(weights, dict)]
