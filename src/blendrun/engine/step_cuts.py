"""Where a step is cut into parts (nano-batches): runs of whole sequences, as the batch has them.

Sequences of one token (decodes) come first in a batch, then prefill chunks. Reading the KV of
decodes hides behind the products of other tokens, so that is where a step is cut first; each side
is then cut in equal pieces of what it costs. Knows columns, no tensors.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blendrun.engine.operators import Resource
from blendrun.tree.prefix_tree import Int32, Int64


@dataclass(frozen=True, slots=True)
class StepShape:
    """What decides whether, and how, a step is worth dividing."""

    decodes: int  # sequences of one token
    chunk_tokens: int  # of all others
    context_len: int  # tokens that decodes read, all together

    @classmethod
    def of(cls, num_tokens: Int32, context_len: Int32) -> "StepShape":
        """Of a step's columns, [S] each."""
        decodes = _num_decodes(num_tokens)
        return cls(
            decodes, int(num_tokens[decodes:].sum()), int(context_len[:decodes].sum(dtype=np.int64))
        )

    @property
    def tokens(self) -> int:
        return self.decodes + self.chunk_tokens


def cut_step(num_tokens: Int32, context_len: Int32, num_parts: int) -> Int64:
    """int64 [P + 1], bounds of P parts in sequences, none empty; P is num_parts or what can be had.

    Args:
        num_tokens: [S] of each sequence in this step.
        context_len: [S] tokens, those of the step included.
        num_parts: wanted. With two, decodes are one and prefill chunks the other; with more, half
            of them, or one more, are decodes.
    """
    num_seqs, decodes = len(num_tokens), _num_decodes(num_tokens)
    of_decodes, of_chunks = num_parts, num_parts
    if 0 < decodes < num_seqs and num_parts > 1:
        of_decodes = num_parts - num_parts // 2
        of_chunks = num_parts // 2
    elif num_parts == 1:
        return np.unique([0, num_seqs])
    reads = _equal_cuts(context_len[:decodes], of_decodes)
    chunks = decodes + _equal_cuts(num_tokens[decodes:], of_chunks)
    return np.unique(np.concatenate([reads, chunks]))


def bounding_resource(num_tokens: Int32) -> Resource:
    """What bounds the attention of a part with these sequences: any decode reads its whole KV."""
    return "memory" if (num_tokens == 1).any() else "compute"


def _num_decodes(num_tokens: Int32) -> int:
    """Sequences of one token before the first longer one."""
    longer = np.flatnonzero(num_tokens > 1)
    return int(longer[0]) if len(longer) else len(num_tokens)


def _equal_cuts(costs: npt.NDArray[np.integer], num_parts: int) -> Int64:
    """Bounds of at most `num_parts` runs of about equal cost."""
    if not len(costs):
        return np.zeros(1, np.int64)
    total = np.concatenate([[0], np.cumsum(costs, dtype=np.int64)])
    targets = total[-1] * np.arange(1, num_parts) / num_parts
    after = np.searchsorted(total, targets)
    nearer = np.where(targets - total[after - 1] < total[after] - targets, after - 1, after)
    return np.unique(np.concatenate([[0], nearer, [len(costs)]]))
