"""Text to token ids and back, in Rust threads, by a checkpoint's `tokenizer.json`.

Adds special tokens to plain text exactly as transformers does for the same folder. Knows no
weights and no requests.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from blendrun.data.chat_template import ChatTemplate, TemplateError
from blendrun.errors import InputError

__all__ = ["PromptTokenizer", "TemplateError"]

_BATCH_CHARS = 4_000_000  # bounds the memory of one call into the tokenizer


class PromptTokenizer:
    """The tokenizer and chat template of one checkpoint folder."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        first = tokenizer.encode("").ids[:1]
        self.bos_id: int | None = first[0] if first else None  # begins every text
        self.vocab_size: int = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @classmethod
    def from_folder(cls, folder: Path) -> "PromptTokenizer":
        """Reads `tokenizer.json` and the chat template in `folder`.

        Raises:
            InputError: there is no usable tokenizer.json.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise InputError(
                f"{folder} has no tokenizer.json",
                "save the tokenizer in its fast format, or give prompts as token ids",
            )
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the Rust library raises bare Exception for any bad file
            raise InputError(f"{path} is not a usable tokenizer: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # Special tokens come from the file's own post-processor: beside a tokenizer.json,
        # transformers ignores the flags add_bos_token and add_eos_token of tokenizer_config.json.
        return cls(tokenizer, ChatTemplate.from_folder(folder))

    def render_chat(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
    ) -> str:
        """The prompt text of chat `messages`, special tokens included.

        Raises:
            TemplateError: the model has no chat template, or it cannot render these messages.
        """
        return self._template.render(messages, tools)

    def encode_texts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 token ids of plain texts, with the special tokens this tokenizer adds."""
        return self._encode(texts, add_special_tokens=True)

    def encode_rendered(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 token ids of rendered chats, which hold their special tokens already."""
        return self._encode(texts, add_special_tokens=False)

    def decode(
        self, token_ids: Sequence[int] | np.ndarray, skip_special_tokens: bool = True
    ) -> str:
        """The text of `token_ids`."""
        ids = np.asarray(token_ids).tolist()
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def _encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[np.ndarray]:
        encoded: list[np.ndarray] = []
        for batch in _batches(texts):
            encodings = self._tokenizer.encode_batch_fast(
                batch, add_special_tokens=add_special_tokens
            )
            encoded.extend(np.array(encoding.ids, dtype=np.int32) for encoding in encodings)
        return encoded


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    num_chars = 0
    for text in texts:
        batch.append(text)
        num_chars += len(text)
        if num_chars >= _BATCH_CHARS:
            yield batch
            batch, num_chars = [], 0
    if batch:
        yield batch
