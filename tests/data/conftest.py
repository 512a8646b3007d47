"""A tokenizer whose tokens are bytes, so that tests can read prompts back from ids."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from blendrun.data.chat_template import TemplateError

BOS = 256


class ByteTokenizer:
    """Plain text gets a BOS if asked for; a rendered chat never does."""

    vocab_size = 257

    def __init__(self, bos: bool = False) -> None:
        self.bos = bos
        self.bos_id = BOS if bos else None

    def render_chat(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
    ) -> str:
        if messages[0]["role"] == "refused":
            raise TemplateError("roles must alternate")
        return "".join(repr(item) for item in [*(tools or []), *messages])

    def encode_texts(self, texts: Sequence[str]) -> list[np.ndarray]:
        start = [BOS] if self.bos else []
        return [np.array(start + list(text.encode()), np.int32) for text in texts]

    def encode_rendered(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array(list(text.encode()), np.int32) for text in texts]


@pytest.fixture(scope="session")
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()


@pytest.fixture(scope="session")
def bos_tokenizer() -> ByteTokenizer:
    return ByteTokenizer(bos=True)
