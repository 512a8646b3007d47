"""Token ids of a workload's prompts, made in pieces: random, but parting where they should.

The first token after a shared prefix encodes which of the prefix's continuations a request is, so
no two of them share a token by chance and the written prompts have exactly the workload's prefix
tree. Where a prefix has more continuations than the vocabulary has tokens, some must begin alike;
those differ in the second token (and are equal where they have only one).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from blendrun.tree.prefix_tree import ROOT, Int32, Int64

if TYPE_CHECKING:
    from blendrun.workloads.workload import Workload

PIECE_TOKENS = 4 * 2**20
_PREFIX, _OWN, _CODE = 2, 3, 4  # streams of the seed


@dataclass(frozen=True, slots=True, eq=False)
class PromptPiece:
    """Prompts of the requests [first, first + M); prompt i is tokens[offsets[i]:offsets[i+1]]."""

    first: int
    tokens: Int32  # flat
    offsets: Int64  # [M + 1]

    @property
    def last(self) -> int:
        return self.first + len(self.offsets) - 1


@dataclass(frozen=True, slots=True, eq=False)
class _Codes:
    """For each prefix a permutation of the vocabulary, c to factor·c + shift modulo its size."""

    factor: Int64  # [P]
    shift: Int64  # [P]
    vocab_size: int

    @classmethod
    def draw(cls, count: int, vocab_size: int, seed: int) -> Self:
        stream = np.random.default_rng([seed, _CODE])
        factor, shift = stream.integers(0, vocab_size, (2, count))
        for i in range(count):
            while math.gcd(int(factor[i]), vocab_size) != 1:
                factor[i] += 1
        return cls(factor, shift, vocab_size)

    def token(self, prefix: Int32, number: Int32) -> Int32:
        """The token that stands for `number`, at `prefix`; distinct below the vocabulary's size."""
        code = self.factor[prefix] * (number % self.vocab_size) + self.shift[prefix]
        return (code % self.vocab_size).astype(np.int32)


def prompt_pieces(workload: "Workload", piece_tokens: int = PIECE_TOKENS) -> Iterator[PromptPiece]:
    """All prompts in order of arrival, about `piece_tokens` tokens at a time.

    The tokens depend on the workload alone, not on how it is cut.
    """
    codes = _Codes.draw(len(workload.prefixes), workload.vocab_size, workload.seed)
    prefix_tokens = _prefix_tokens(workload, codes)
    number = _continuation(workload)
    crowded = _num_continuations(workload) > workload.vocab_size
    stream = np.random.default_rng([workload.seed, _OWN])
    ends = np.concatenate([[0], np.cumsum(workload.prompt_len, dtype=np.int64)])
    first = 0
    while first < workload.num_requests:
        last = int(np.searchsorted(ends, ends[first] + piece_tokens, side="right")) - 1
        last = min(max(last, first + 1), workload.num_requests)
        offsets = ends[first : last + 1] - ends[first]
        prefix = workload.prefix[first:last]
        tokens = stream.integers(0, workload.vocab_size, offsets[-1], dtype=np.int32)
        for each in np.unique(prefix):
            starts = offsets[:-1][prefix == each]
            shared = prefix_tokens[each]
            tokens[starts[:, None] + np.arange(len(shared))] = shared
        own = offsets[:-1] + workload.prefixes.depth[prefix]
        tokens[own] = codes.token(prefix, number[first:last])
        second = crowded[prefix] & (workload.own_len[first:last] > 1)
        turn = number[first:last] // workload.vocab_size
        tokens[own[second] + 1] = codes.token(prefix[second], turn[second])
        yield PromptPiece(first, tokens, offsets)
        first = last


def _prefix_tokens(workload: "Workload", codes: _Codes) -> list[Int32]:
    """Tokens of every shared prefix from the start of the prompt."""
    prefixes = workload.prefixes
    stream = np.random.default_rng([workload.seed, _PREFIX])
    tokens: list[Int32] = [np.empty(0, np.int32)]
    first = codes.token(prefixes.parent, prefixes.place)
    for prefix in range(ROOT + 1, len(prefixes)):
        above = tokens[prefixes.parent[prefix]]
        edge_len = prefixes.depth[prefix] - len(above)
        edge = stream.integers(0, workload.vocab_size, edge_len, dtype=np.int32)
        edge[0] = first[prefix]
        tokens.append(np.concatenate([above, edge]))
    return tokens


def _num_continuations(workload: "Workload") -> Int64:
    """Longer prefixes and requests right after each prefix, [P]."""
    below = np.bincount(workload.prefix, minlength=len(workload.prefixes))
    return below + workload.prefixes.num_children


def _continuation(workload: "Workload") -> Int32:
    """Which continuation of its prefix each request is, [N]: after the longer prefixes."""
    order = np.argsort(workload.prefix, kind="stable")
    count = np.bincount(workload.prefix, minlength=len(workload.prefixes))
    start = np.cumsum(count) - count
    number = np.empty(workload.num_requests, np.int32)
    number[order] = np.arange(workload.num_requests) - start[workload.prefix[order]]
    return number + workload.prefixes.num_children[workload.prefix]
