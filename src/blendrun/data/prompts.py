"""The prompt of each row: text, chat or token ids, and from all three to token ids.

Knows what a prompt may look like, not how text becomes tokens nor how long it may be.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from blendrun.data.chat_template import TemplateError
from blendrun.data.chats import Chat, as_chat, describe
from blendrun.data.columns import ColumnNames
from blendrun.data.continuations import (
    Continuations,
    Encode,
    context,
    is_text,
    reject_empty,
    tokens_after_texts,
)
from blendrun.data.flat_tokens import FlatTokens, TokenIds
from blendrun.data.rows import BadRowError, IdLists, Rejections, RowBatch
from blendrun.data.token_ids import checked_ids, to_ids
from blendrun.errors import InputError

_NO_TOKENS = np.zeros(0, np.int32)


class TextTokenizer(Protocol):
    """What is needed of a tokenizer; `data.tokenizer.PromptTokenizer` is the real one."""

    @property
    def bos_id(self) -> int | None:
        """The token that begins every text, if there is one."""
        ...

    def render_chat(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, /
    ) -> str:
        """The chat as one text. Raises TemplateError."""
        ...

    def encode_texts(self, texts: Sequence[str], /) -> list[TokenIds]:
        """Ids of plain texts, with the special tokens that the tokenizer adds."""
        ...

    def encode_rendered(self, texts: Sequence[str], /) -> list[TokenIds]:
        """Ids of rendered chats, which already hold their special tokens."""
        ...


class PromptTokens(NamedTuple):
    """Of all rows of a batch."""

    prompts: FlatTokens  # none of rows that are rejected
    continuations: dict[int, list[TokenIds]]  # by row, where it asks for scores


def prompt_tokens(
    batch: RowBatch,
    names: ColumnNames,
    tokenizer: TextTokenizer | None,
    vocab_size: int,
    rejections: Rejections,
    asked: Mapping[int, Continuations],
) -> PromptTokens:
    """Token ids of every row that is not in `rejections`, which it adds to.

    Args:
        asked: continuations that rows want scored.

    Raises:
        InputError: a row holds text and there is no tokenizer.
    """
    columns = {kind: getattr(names, kind) for kind in names.prompt_fields()}
    only = [batch.columns[name] for name in columns.values() if name in batch.columns]
    if len(only) == 1 and not asked and isinstance(only[0], IdLists) and only[0].valid.all():
        return PromptTokens(_from_ids(only[0], vocab_size, rejections), {})
    texts: dict[int, str] = {}
    rendered: dict[int, str] = {}
    tokens: dict[int, TokenIds] = {}
    for row in range(len(batch)):
        if row in rejections:
            continue
        try:
            kind, value = _only_value(batch, columns, row)
            tools = batch.columns[names.tools][row] if names.tools in batch.columns else None
            value = _as_prompt(kind, value, tools)
            if tokenizer is None and (not isinstance(value, np.ndarray) or is_text(asked.get(row))):
                raise InputError(
                    f"row {batch.lines[row]} of the file is text, which needs a tokenizer",
                    "give a model that has one, or token ids as prompts",
                )
            if isinstance(value, np.ndarray):
                tokens[row] = checked_ids(value, vocab_size)
            elif isinstance(value, str):
                texts[row] = value
            elif tokenizer is not None:
                rendered[row] = _rendered(tokenizer, value)
        except BadRowError as error:
            rejections[row] = (error.code, error.message)
    encoders = _encoders(tokenizer)
    continuations = tokens_after_texts(
        dict.fromkeys(tokens, ""), dict.fromkeys(tokens, _NO_TOKENS), asked, encoders.rendered
    )
    for encode, some in ((encoders.plain, texts), (encoders.rendered, rendered)):
        contexts = [context(text, asked.get(row)) for row, text in some.items()]
        tokens.update(zip(some, encode(contexts), strict=True))
        continuations.update(tokens_after_texts(some, tokens, asked, encode))
    reject_empty(continuations, names.score, rejections)
    return PromptTokens(
        FlatTokens.of([tokens.get(row, _NO_TOKENS) for row in range(len(batch))]), continuations
    )


class _Encoders(NamedTuple):
    """What makes tokens of plain texts and of rendered chats."""

    plain: Encode
    rendered: Encode


def _encoders(tokenizer: TextTokenizer | None) -> _Encoders:
    if tokenizer is None:  # there are no texts
        return _Encoders(lambda _texts: [], lambda _texts: [])

    def plain(texts: Sequence[str]) -> list[TokenIds]:
        return [_with_one(tokenizer.bos_id, ids) for ids in tokenizer.encode_texts(texts)]

    return _Encoders(plain, tokenizer.encode_rendered)


def _from_ids(lists: IdLists, vocab_size: int, rejections: Rejections) -> FlatTokens:
    """The prompts of a column that holds nothing but token ids, without a look at each row."""
    flat = lists.flat[lists.offsets[0] : lists.offsets[-1]]
    if len(flat) and (int(flat.min()) < 0 or int(flat.max()) >= vocab_size):
        for row in range(len(lists)):
            try:
                if row not in rejections:
                    checked_ids(lists[row], vocab_size)
            except BadRowError as error:
                rejections[row] = (error.code, error.message)
    lengths = np.diff(lists.offsets).astype(np.int64)
    return FlatTokens(flat.astype(np.int32, copy=False), lengths)


def _only_value(batch: RowBatch, columns: dict[str, str], row: int) -> tuple[str, Any]:
    """The kind and value of the one prompt column that is set in a row."""
    found = [
        (kind, batch.columns[name][row])
        for kind, name in columns.items()
        if name in batch.columns and batch.columns[name][row] is not None
    ]
    if len(found) > 1:  # data for training often has the same chat in both forms
        found = [(kind, value) for kind, value in found if kind != "conversations"]
    if not found:
        names = [name for name in columns.values() if name in batch.columns]
        where = " and ".join(names or columns.values())
        raise BadRowError("empty_prompt", f"no prompt: {where} null or absent")
    if len(found) > 1:
        both = " and ".join(columns[kind] for kind, _ in found)
        raise BadRowError("bad_type", f"{both} are both set; a row has one prompt")
    return found[0]


def _as_prompt(kind: str, value: Any, tools: Any) -> str | TokenIds | Chat:
    """The value as text, as token ids (any integer dtype) or as a chat."""
    if kind == "prompt" and isinstance(value, str):
        return value
    if kind in ("messages", "conversations"):
        return as_chat(value, tools)
    ids = to_ids(value)
    if ids is not None:
        return ids
    wanted = "text or a list of token ids" if kind == "prompt" else "a list of token ids"
    found = f"a list with {_stranger(value)}" if isinstance(value, list) else describe(value)
    raise BadRowError("bad_type", f"the prompt must be {wanted}, not {found}")


def _stranger(values: list[Any]) -> str:
    """The first that is no whole number."""
    return describe(next(value for value in values if type(value) is not int))


def _rendered(tokenizer: TextTokenizer, chat: Chat) -> str:
    try:
        return tokenizer.render_chat(chat.messages, chat.tools)
    except TemplateError as error:
        raise BadRowError("template_error", str(error)) from error


def _with_one(bos_id: int | None, ids: TokenIds) -> TokenIds:
    """The ids without the second BOS of a text that begins with one itself."""
    twice = bos_id is not None and len(ids) > 1 and ids[0] == ids[1] == bos_id
    return ids[1:] if twice else ids
