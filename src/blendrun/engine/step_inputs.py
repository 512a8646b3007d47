"""Everything that a rank needs to know to compute a step, as flat arrays."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from blendrun.engine.tensor_group import Message
from blendrun.tree.prefix_tree import Int32, Int64

STEP = 1  # kind of message
_OF_8_BYTES = {"slot": np.int64, "memory_frac": np.float64}  # the first, so that they are aligned


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Of T tokens in S sequences, of which R are followed by a token that is drawn.

    KV pages are copied first, then the tokens' K and V are written, then attention reads.
    """

    slot: Int64  # [W] page * page_size + offset, …
    # [1] of the SMs, for decode attention of a step in parts; [0]: it stays whole
    memory_frac: npt.NDArray[np.float64]
    token_idx: Int32  # [W] … of which token
    copy_from: Int32  # [C] pages
    copy_to: Int32  # [C]
    token_ids: Int32  # [T]
    positions: Int32  # [T]
    part_bounds: Int32  # [P + 1] of the step's parts, in sequences; [0]: it stays whole
    num_tokens: Int32  # [S]
    context_len: Int32  # [S] tokens, those of the step included
    page_table: Int32  # [S, max_pages]
    order: Int32  # [S] sequences, in the order of the prefix tree
    drawn: Int32  # [R] tokens that are followed by a draw
    whole: Int32  # of the R rows, those whose logits the first rank needs whole
    scored: Int32  # [Q] tokens whose logits score a prompt

    def part(self, first: int, last: int) -> "StepInputs":
        """Sequences [first, last) alone, with numbers of their own; no pages are copied."""
        bounds = np.concatenate([[0], np.cumsum(self.num_tokens)])
        begin, end = int(bounds[first]), int(bounds[last])
        written = (self.token_idx >= begin) & (self.token_idx < end)
        chosen = (self.order >= first) & (self.order < last)
        none = np.zeros(0, np.int32)
        return StepInputs(
            slot=self.slot[written],
            memory_frac=np.zeros(0),
            token_idx=self.token_idx[written] - np.int32(begin),
            copy_from=none,
            copy_to=none,
            token_ids=self.token_ids[begin:end],
            positions=self.positions[begin:end],
            part_bounds=none,
            num_tokens=self.num_tokens[first:last],
            context_len=self.context_len[first:last],
            page_table=self.page_table[first:last],
            order=self.order[chosen] - np.int32(first),
            drawn=_within(self.drawn, begin, end),
            whole=none,  # numbers rows of the whole step
            scored=_within(self.scored, begin, end),
        )

    def message(self) -> Message:
        """For the other ranks."""
        arrays = [getattr(self, f.name) for f in fields(self)]
        payload = np.concatenate([array.reshape(-1).view(np.int32) for array in arrays])
        return Message(STEP, [array.size for array in arrays], payload)

    @classmethod
    def of(cls, message: Message) -> "StepInputs":
        """What `message` said."""
        sizes = dict(zip((f.name for f in fields(cls)), message.numbers, strict=False))
        arrays: dict[str, npt.NDArray[Any]] = {}
        start = 0
        for name, size in sizes.items():
            end = start + size * (2 if name in _OF_8_BYTES else 1)
            arrays[name], start = message.payload[start:end], end
        for name, dtype in _OF_8_BYTES.items():
            arrays[name] = arrays[name].view(dtype)
        arrays["page_table"] = arrays["page_table"].reshape(sizes["num_tokens"], -1)
        return cls(**arrays)


def _within(tokens: Int32, begin: int, end: int) -> Int32:
    return tokens[(tokens >= begin) & (tokens < end)] - np.int32(begin)
