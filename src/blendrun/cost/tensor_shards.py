"""How a decoder is divided among tensor-parallel ranks: what each of them holds.

Attention by heads, the middle of the MLP or of every expert and the vocabulary in pieces of nearly
equal size. Knows sizes only, so that a plan can be refused before any weight is read.
"""

from dataclasses import dataclass

from blendrun.errors import InputError

_BLOCK = 16  # columns: pieces of wide matrices stay whole vectors


@dataclass(frozen=True, slots=True)
class Shard:
    """What rank `rank` of `size` holds. Ranges count in heads, columns or token ids."""

    rank: int = 0
    size: int = 1

    def heads(self, num_heads: int) -> range:
        """Its query heads; `size` divides `num_heads`."""
        each = num_heads // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def kv_heads(self, num_kv_heads: int) -> range:
        """The KV heads that its query heads read; more ranks than KV heads repeat them."""
        if self.size <= num_kv_heads:
            return self.heads(num_kv_heads)
        head = self.rank * num_kv_heads // self.size
        return range(head, head + 1)

    def piece(self, total: int) -> range:
        """Its piece of `total` columns or rows; no piece is larger by more than a block."""
        block = _BLOCK if total >= _BLOCK * self.size else 1
        num_blocks = -(-total // block)
        cuts = [block * (num_blocks * rank // self.size) for rank in (self.rank, self.rank + 1)]
        return range(*(min(cut, total) for cut in cuts))


WHOLE = Shard()


def valid_tp_sizes(num_heads: int, num_kv_heads: int) -> tuple[int, ...]:
    """Tensor-parallel sizes that divide the heads evenly, ascending.

    A size divides the query heads, and it divides the KV heads or they divide it.
    """
    return tuple(
        size
        for size in range(1, num_heads + 1)
        if num_heads % size == 0 and (num_kv_heads % size == 0 or size % num_kv_heads == 0)
    )


def check_tp(tp: int, num_heads: int, num_kv_heads: int, name: str) -> None:
    """Raises InputError, with the sizes that go, where model `name` has no `tp` equal parts."""
    sizes = valid_tp_sizes(num_heads, num_kv_heads)
    if tp not in sizes:
        raise InputError(
            f"{name} cannot be divided among {tp} ranks: it has {num_heads} query heads and "
            f"{num_kv_heads} KV heads",
            f"tensor-parallel sizes that divide its heads: {', '.join(map(str, sizes))}",
        )
