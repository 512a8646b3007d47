"""How many KV pages a run gets."""

from blendrun.cost.machine import available_memory_bytes
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.requests import EngineRequests
from blendrun.errors import CapacityError
from blendrun.tree.prefix_tree import Int32
from blendrun.units import format_bytes

MEMORY_FRAC = 0.6  # of what is free: the rest is for weights, activations and everyone else


def kv_bytes_per_page(config: DecoderConfig, page_size: int, element_bytes: int) -> int:
    """K and V of one page, over all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * page_size * element_bytes


def num_pages(
    requests: EngineRequests,
    pending: Int32,
    page_size: int,
    bytes_per_page: int,
    asked_bytes: int | None,
) -> int:
    """Pages for the pending requests: what was asked for, else what they need and fits.

    Raises:
        CapacityError: not one page fits.
    """
    limit = asked_bytes if asked_bytes is not None else int(available_memory_bytes() * MEMORY_FRAC)
    tokens = requests.prompt_len[pending].sum(dtype="int64") + requests.max_tokens[pending].sum(
        dtype="int64"
    )
    # every node may start and end inside a page
    needed = int(tokens) // page_size + 2 * requests.tree.num_nodes + 2
    pages = limit // bytes_per_page
    if pages < 1:
        raise CapacityError(
            f"{format_bytes(limit)} is less than one KV page ({format_bytes(bytes_per_page)})",
            "raise --kv-memory",
        )
    return min(pages, needed)


def longest_len(requests: EngineRequests, request: int) -> int:
    """Context of a request that uses all of its `max_tokens`, in tokens."""
    return int(requests.prompt_len[request]) + int(requests.max_tokens[request])
