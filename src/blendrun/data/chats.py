"""What a chat may look like in a row, and the one form that chat templates take.

Knows OpenAI's messages and ShareGPT's `from` and `value`; renders nothing.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blendrun.data.rows import BadRowError

_ROLES = {  # of ShareGPT's `from`
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "observation": "tool",
}


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages as a chat template takes them: `content` is text or null."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


def as_chat(value: Any, tools: Any = None) -> Chat:
    """The chat in a row's columns: lists, or the JSON text of lists.

    Raises:
        BadRowError: it is no chat.
    """
    messages = _as_list(value, "messages")
    if not messages:
        raise BadRowError("empty_prompt", "messages is an empty list")
    chat = [_message(number, message) for number, message in enumerate(messages, start=1)]
    return Chat(chat, _tools(tools))


def _tools(value: Any) -> list[dict[str, Any]] | None:
    tools = [] if value is None else _as_list(value, "tools")
    if not all(isinstance(tool, dict) for tool in tools):
        raise BadRowError("bad_type", "tools must be a list of objects")
    return tools or None


def _as_list(value: Any, name: str) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise BadRowError("bad_type", f"{name} is text, but not a JSON list") from None
    if isinstance(value, np.ndarray):  # a column of empty lists, or of numbers
        value = value.tolist()
    if not isinstance(value, list):
        raise BadRowError("bad_type", f"{name} must be a list, not {describe(value)}")
    return value


def _message(number: int, message: Any) -> dict[str, Any]:
    where = f"message {number}"
    if not isinstance(message, dict):
        raise BadRowError("bad_type", f"{where} must be an object, not {describe(message)}")
    if "role" not in message and "from" in message:
        message = _from_sharegpt(message)
    if not isinstance(message.get("role"), str):
        raise BadRowError("bad_type", f"{where} has no role that is text")
    calls = message.get("tool_calls")
    content = _content(where, message.get("content"), may_be_null=bool(calls))
    changed: dict[str, Any] = {} if "content" not in message else {"content": content}
    if isinstance(calls, list):
        changed["tool_calls"] = [_call(call) for call in calls]
    return {**message, **changed}


def _from_sharegpt(message: dict[str, Any]) -> dict[str, Any]:
    speaker = message["from"]
    rest = {name: value for name, value in message.items() if name not in ("from", "value")}
    role = _ROLES.get(speaker, speaker) if isinstance(speaker, str) else speaker
    return {"role": role, "content": message.get("value"), **rest}


def _content(where: str, content: Any, may_be_null: bool) -> str | None:
    """The text of a message; text parts are put together with line breaks, as vLLM does."""
    if isinstance(content, np.ndarray):
        content = content.tolist()
    if isinstance(content, list):
        return "\n".join(_texts(where, content))
    if isinstance(content, str) or (content is None and may_be_null):
        return content
    raise BadRowError("bad_type", f"{where}: content must be text, not {describe(content)}")


def _texts(where: str, parts: Sequence[Any]) -> list[str]:
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind == "text":
                raise BadRowError("bad_type", f"{where}: a part of type 'text' has no text")
            shown = f"a part of type {kind!r}" if kind else describe(part)
            raise BadRowError("bad_type", f"{where}: content may have parts of text, not {shown}")
        texts.append(text)
    return texts


def _call(call: Any) -> Any:
    """A tool call with its arguments as an object: OpenAI writes them as JSON text."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        parsed = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": parsed}}


def describe(value: Any) -> str:
    return "null" if value is None else f"a value of type {type(value).__name__}"
