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

    def __init__(self, source: str | None, variables: Mapping[str, str]) -> None:
        self._source = source
        self._variables = dict(variables)

    @classmethod
    def from_folder(cls, folder: Path) -> "ChatTemplate":
        config = read_json(folder / "tokenizer_config.json")
        special = read_json(folder / "special_tokens_map.json") | config
        texts = {name: token_text(special.get(name)) for name in _TOKEN_NAMES}
        return cls(
            _template_source(folder, config),
            {name: text for name, text in texts.items() if isinstance(text, str)},
        )

    def render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
    ) -> str:
        """The prompt text of `messages`, ending where the assistant is to answer.

        Raises:
            TemplateError: there is no template, or it refuses or cannot handle the messages.
        """
        if self._source is None:
            raise TemplateError("the model has no chat template: give `prompt` text instead")
        if not messages:
            raise TemplateError("there are no messages")
        # Parquet fills absent fields with nulls, which templates would take as present.
        chat = [{k: v for k, v in message.items() if v is not None} for message in messages]
        try:
            rendered, _ = _renderer()(
                conversations=[chat],
                tools=tools,
                chat_template=self._source,
                add_generation_prompt=True,
                **self._variables,
            )
        except Exception as error:  # a template is a program of its own: anything may come out
            raise TemplateError(f"chat template: {error}") from error
        return str(rendered[0])


def _template_source(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template


@functools.cache
def _renderer() -> Callable[..., Any]:
    """transformers' renderer, which keeps compiled templates; imported on first use."""
    # Some versions announce on import that torch is missing, which is fine here.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers.utils.chat_template_utils import render_jinja_template

    return render_jinja_template  # type: ignore[no-any-return]
