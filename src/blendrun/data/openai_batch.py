"""Lines of OpenAI's Batch API as rows: `custom_id`, `method`, `url`, and a `body` of parameters.

Knows which fields of a body mean which column; not what a column may hold.
"""

from collections.abc import Collection, Mapping
from pathlib import PurePath
from typing import Any

from blendrun.data.columns import PARAM_COLUMNS, ColumnNames
from blendrun.data.input_options import InputFormat
from blendrun.data.rows import Adapt, BadRowError, BatchRequest

_FIELDS = frozenset({"custom_id", "method", "url", "body"})
_CHAT = "/v1/chat/completions"
_TEXT = "/v1/completions"
_LENGTHS = ("max_completion_tokens", "max_tokens")  # the newer name wins
# what says nothing about the answer
_IGNORED = frozenset(
    {"metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"}
    | {"service_tier", "store", "user"}
)
# fields that cannot be followed, and the values that ask for nothing
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "stream": (False,),
    "suffix": ("",),
    "tool_choice": ("auto",),
    "top_logprobs": (0,),
}


def batch_requests(names: ColumnNames, format: InputFormat) -> Adapt:
    """What tells whether a row is a batch request, and which.

    With `auto` those are that have no prompt, and fields of one. A person who names the column of
    prompts has no batch file.
    """
    if format == "openai":
        return lambda row: request_of(row, names)
    if format == "columns" or names.prompt_is_named():
        return lambda _row: None
    prompts = frozenset(names.prompt_columns())

    def adapt(row: Mapping[str, Any]) -> BatchRequest | None:
        keys = row.keys()
        return request_of(row, names) if _looks_like_one(keys, prompts) else None

    return adapt


def is_batch_file(fields: Collection[str], names: ColumnNames, format: InputFormat) -> bool:
    """Whether a file whose rows have these fields may hold batch requests."""
    return batch_requests(names, format)(dict.fromkeys(fields)) is not None


def is_model(asked: str, model: str | None) -> bool:
    """Whether a body asks for the job's model, by its whole name or the last part of it."""
    return model is not None and asked in (model, PurePath(model).name)


def _looks_like_one(fields: Collection[str], prompts: frozenset[str]) -> bool:
    if "custom_id" not in fields and not {"method", "url", "body"} <= set(fields):
        return False
    return prompts.isdisjoint(fields) and len(_FIELDS.intersection(fields)) > 1


def request_of(row: Mapping[str, Any], names: ColumnNames) -> BatchRequest:
    """The request of a row, with the fields of its body under the names of columns."""
    custom_id, body = row.get("custom_id"), row.get("body")
    known_id = custom_id if isinstance(custom_id, str) and custom_id else None
    model = body.get("model") if isinstance(body, dict) else None
    try:
        fields = _fields(row, names)
    except BadRowError as error:
        return BatchRequest(known_id, None, {}, (error.code, error.message))
    return BatchRequest(known_id, model if isinstance(model, str) else None, fields)


def _fields(row: Mapping[str, Any], names: ColumnNames) -> dict[str, Any]:
    custom_id, method, url, body = (
        row.get(name) for name in ("custom_id", "method", "url", "body")
    )
    if not isinstance(custom_id, str) or not custom_id:
        raise BadRowError("bad_request", "custom_id must be text that is not empty")
    if method != "POST":
        raise BadRowError("bad_request", f"method must be POST, not {_shown(method)}")
    if url not in (_CHAT, _TEXT):
        raise BadRowError("bad_request", f"url must be {_CHAT} or {_TEXT}, not {_shown(url)}")
    if not isinstance(body, dict):
        raise BadRowError("bad_request", f"body must be an object, not {_shown(body)}")
    given = {name: value for name, value in body.items() if value is not None}
    given.pop("model", None)
    fields = _prompt(given, names) if url == _TEXT else _chat(given, names)
    lengths = [given.pop(name) for name in _LENGTHS if name in given]
    if lengths:
        fields[names.max_tokens] = lengths[0]
    for name, value in given.items():
        if name in PARAM_COLUMNS:
            fields[name] = value
        elif name not in _IGNORED and not _asks_nothing(name, value):
            raise BadRowError("bad_parameter", f"{name} {_shown(value)} is not supported")
    return fields


def _chat(given: dict[str, Any], names: ColumnNames) -> dict[str, Any]:
    if "messages" not in given:
        raise BadRowError("bad_request", "the body has no messages")
    fields = {names.messages: given.pop("messages"), names.tools: given.pop("tools", None)}
    if given.get("logprobs") is True:
        given["logprobs"] = given.pop("top_logprobs", 0)
    elif given.get("logprobs") is False:
        del given["logprobs"]
    return fields


def _prompt(given: dict[str, Any], names: ColumnNames) -> dict[str, Any]:
    if "prompt" not in given:
        raise BadRowError("bad_request", "the body has no prompt")
    prompt = given.pop("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise BadRowError("bad_request", "a request with several prompts: write one per line")
        prompt = prompt[0]
    return {names.prompt: prompt}


def _asks_nothing(name: str, value: Any) -> bool:
    return any(
        value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
        for neutral in _NEUTRAL.get(name, ())
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return "null" if value is None else text if len(text) <= 80 else f"{text[:77]}..."
