"""Keeps answers to what their rows ask for: masks of the tokens that may come next.

Each distinct grammar is compiled once, each answer has a state of its own. The work is done by
llguidance, which is needed only where a row asks.
"""

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blendrun.data.structures import Structure, short
from blendrun.errors import InputError
from blendrun.kernels.uploads import upload
from blendrun.tree.prefix_tree import Int64

BAD_SCHEMA = "bad_schema"
_KEPT = 256  # compiled grammars
_ROWS_AT_ONCE = 32  # bounds the masks: 32 rows of 150 K tokens are 5 MB


@dataclass(slots=True)
class Guide:
    """How far one answer has come. With an `error` it says nothing any more."""

    matcher: Any  # llguidance.LLMatcher
    error: str = ""

    def consume(self, token: int) -> None:
        """The answer's next token."""
        if not self.error and not self.matcher.consume_token(token):
            self.error = short(self.matcher.get_error())

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow."""
        return not self.error and bool(self.matcher.is_stopped())


class Guides:
    """Compiles and masks.

    Raises:
        InputError: llguidance is not installed.
    """

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        try:
            import llguidance
        except ImportError as error:
            raise InputError(
                "rows ask for structured output, which needs llguidance",
                "pip install 'blendrun[structured]'",
            ) from error
        self._library = llguidance
        self._tokenizer = llguidance.LLTokenizer(
            str(folder / "tokenizer.json"),
            n_vocab=vocab_size,
            eos_token=eos_token_ids[0] if eos_token_ids else None,
        )
        self._executor = llguidance.LLExecutor(num_threads=torch.get_num_threads())
        self._eos = np.array(eos_token_ids, np.int64)
        self._vocab_size = vocab_size
        self._compiled: OrderedDict[Structure, Guide] = OrderedDict()

    def begin(self, structure: Structure) -> Guide:
        """A guide at the start of an answer."""
        compiled = self._compiled.pop(structure, None) or self._compile(structure)
        self._compiled[structure] = compiled
        if len(self._compiled) > _KEPT:
            self._compiled.popitem(last=False)
        if compiled.error:
            return compiled
        return Guide(compiled.matcher.deep_copy())

    def _compile(self, structure: Structure) -> Guide:
        try:
            grammar = self._library.grammar_from(*structure)
        except ValueError as error:
            return Guide(None, short(str(error)))
        matcher = self._library.LLMatcher(self._tokenizer, grammar)
        return Guide(matcher, short(matcher.get_error()))

    def mask(self, logits: Tensor, rows: Int64, guides: list[Guide]) -> None:
        """Leave only what may come next at those `rows` of float32 `logits` [R, vocab]."""
        # finite, so that a mask does not look like a broken model
        never = torch.finfo(logits.dtype).min
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = guides[start : start + _ROWS_AT_ONCE]
            forbidden = upload(torch.from_numpy(~self._allowed(some)), logits.device)
            at = upload(torch.from_numpy(rows[start : start + _ROWS_AT_ONCE]), logits.device)
            logits[at] = logits[at].masked_fill(forbidden, never)

    def _allowed(self, guides: list[Guide]) -> np.ndarray:
        """bool [A, vocab]; everything where a guide has an error."""
        bits = np.full((len(guides), -(-self._vocab_size // 32)), -1, np.int32)
        active = [(guide.matcher, i) for i, guide in enumerate(guides) if not guide.error]
        if active:
            self._executor.unsafe_compute_mask_ptr(
                active, bits.ctypes.data, 4 * bits.shape[1], len(guides)
            )
        allowed = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")
        allowed = allowed[:, : self._vocab_size].view(np.bool_)
        for i, guide in enumerate(guides):
            if not guide.error and guide.matcher.is_error():
                guide.error = short(guide.matcher.get_error())
                allowed[i] = True
        if len(self._eos) > 1:  # where the first may end it, all may
            allowed[:, self._eos] = allowed[:, self._eos[:1]]
        return allowed
