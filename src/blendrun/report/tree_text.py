"""What a node of the prefix tree says: the beginning of its edge, fit to be shown anywhere.

Decoded with the plan's tokenizer where that is at hand and still the same; token ids otherwise.
Control characters come out escaped, so that a prompt cannot act on the terminal it is shown in.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blendrun.data.model_files import resolve_model
from blendrun.data.tokenizer import PromptTokenizer
from blendrun.errors import BlendrunError
from blendrun.schedule.plan_file import StoredPlan
from blendrun.schedule.plan_record import Plan

_TOKENS_READ = 128  # enough for a line
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


@dataclass(frozen=True, slots=True)
class PrefixText:
    stored: StoredPlan
    tokenizer: PromptTokenizer | None

    def of(self, node: int, width: int) -> str:
        """At most `width` characters of the tokens on the edge of `node`.

        "…" stands for what comes before or after; a node without tokens of its own has no text.
        """
        tree = self.stored.tree
        request = int(tree.leaf_order[tree.first_leaf[node]])
        start, end = int(tree.depth[tree.parent[node]]), int(tree.depth[node])
        tokens = self.stored.store[request][start:end]
        head = np.asarray(tokens[:_TOKENS_READ])
        if not len(head):
            return ""
        before, after = "…" if start else "", "…" if len(tokens) > len(head) else ""
        return cut(f"{before}{self._decode(head)}{after}", width)

    def _decode(self, tokens: npt.NDArray[np.int32]) -> str:
        if self.tokenizer is None:
            return " ".join(map(str, tokens.tolist()))
        return printable(self.tokenizer.decode(tokens, skip_special_tokens=False))


def open_tokenizer(plan: Plan) -> PromptTokenizer | None:
    """The tokenizer that the plan was made with; None where it is not there or not the same."""
    spec = plan.model.spec
    if spec.endswith(".toml"):
        spec = plan.settings.get("tokenizer") or ""
    if not spec:
        return None
    try:
        files = resolve_model(spec, weights=False, engine=plan.engine)
        if plan.model.fingerprint not in ("", files.fingerprint):
            return None
        return PromptTokenizer.from_folder(files.folder)
    except BlendrunError:
        return None


def printable(text: str) -> str:
    """`text` with escapes for what a terminal would act on instead of showing."""
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _escaped(char: str) -> str:
    return _ESCAPES.get(char) or char.encode("unicode_escape").decode()
