"""Chat messages rendered to text by a checkpoint's own template.

Renders as transformers does (same sandbox, same variables) without loading torch; knows no token
ids.
"""

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from blendrun.data.gguf_tokenizer import token_text
from blendrun.data.model_files import read_json

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
                "mask_token")  # fmt: skip


class TemplateError(Exception):
    """Messages that this model's chat template cannot render; the row is set aside."""


class ChatTemplate:
    """The chat template of one checkpoint folder; a model without one raises on `render`."""

    def __init__(
        self, source: str | None, variables: Mapping[str, str], for_tools: str | None = None
    ) -> None:
        self._source = source
        self._for_tools = for_tools or source
        self._variables = dict(variables)

    @classmethod
    def from_folder(cls, folder: Path) -> "ChatTemplate":
        config = read_json(folder / "tokenizer_config.json")
        special = read_json(folder / "special_tokens_map.json") | config
        texts = {name: token_text(special.get(name)) for name in _TOKEN_NAMES}
        named = _template_sources(folder, config)
        return cls(
            named.get("default"),
            {name: text for name, text in texts.items() if isinstance(text, str)},
            named.get("tool_use"),
        )

    @property
    def sources(self) -> tuple[str, ...]:
        """The texts of its templates."""
        return tuple(source for source in (self._source, self._for_tools) if source is not None)

    def render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
    ) -> str:
        """The prompt text of `messages`, ending where the assistant is to answer.

        Raises:
            TemplateError: there is no template, or it refuses or cannot handle the messages.
        """
        source = self._for_tools if tools else self._source
        if source is None:
            raise TemplateError("the model has no chat template: give `prompt` text instead")
        if not messages:
            raise TemplateError("there are no messages")
        # Fields that a client or Parquet fills with nulls are absent; that content is null, beside
        # calls of tools, is what some templates look for.
        chat = [
            {k: v for k, v in message.items() if v is not None or k == "content"}
            for message in messages
        ]
        try:
            rendered, _ = _renderer()(
                conversations=[chat],
                tools=tools,
                chat_template=source,
                add_generation_prompt=True,
                **self._variables,
            )
        except Exception as error:  # a template is a program of its own: anything may come out
            raise TemplateError(f"chat template: {error}") from error
        return str(rendered[0])


def _template_sources(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Templates by name: `default`, and perhaps one for chats with tools, `tool_use`."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return {"default": file.read_text(encoding="utf-8")}
    template = config.get("chat_template")
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}
    return {} if template is None else {"default": template}


@functools.cache
def _renderer() -> Callable[..., Any]:
    """transformers' renderer, which keeps compiled templates; imported on first use."""
    # Some versions announce on import that torch is missing, which is fine here.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers.utils.chat_template_utils import render_jinja_template

    return render_jinja_template  # type: ignore[no-any-return]
