"""How many KV pages a run gets."""

from blendrun.cost.machine import available_memory_bytes
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.requests import EngineRequests
from blendrun.errors import CapacityError
from blendrun.tree.prefix_tree import Int32
from blendrun.units import format_bytes

MEMORY_FRAC = 0.6  # of what is free: the rest is for weights, activations and everyone else


def free_bytes(num_ranks: int) -> int:
    """Memory for the KV pages of one of `num_ranks` ranks, which share this machine's."""
    return int(available_memory_bytes() * MEMORY_FRAC) // num_ranks


def kv_bytes_per_page(config: DecoderConfig, page_size: int, element_bytes: int) -> int:
    """K and V of one page on one rank, over all layers; `config` is the rank's."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * page_size * element_bytes


def num_pages(
    requests: EngineRequests,
    pending: Int32,
    page_size: int,
    bytes_per_page: int,
    limit: int,
) -> int:
    """Pages for the pending requests: what they need, at most `limit` bytes of them.

    Raises:
        CapacityError: not one page fits.
    """
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


def too_large(requests: EngineRequests, request: int, pages: int, page_size: int) -> str:
    """The error of a request that does not fit into all pages."""
    return (
        f"needs_more_memory: {longest_len(requests, request)} tokens with the prefixes they share "
        f"need more than {pages} KV pages of {page_size} tokens; "
        "--retry-errors with more --kv-memory can answer it"
    )
