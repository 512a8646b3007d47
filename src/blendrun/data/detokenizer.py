"""Token ids to text, by the bytes that each token stands for.

A character whose bytes come in several tokens is one character; bytes that end inside one, or are
none, are one U+FFFD each time. Knows the decoders of byte-level BPE and of SentencePiece with byte
fallback; text of any other tokenizer is the library's.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from blendrun.errors import InputError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer:
    """The text of answers, without special tokens."""

    def __init__(self, tokenizer: Tokenizer, kept: Collection[str] = ()) -> None:
        """Special tokens that are `kept` are text, too."""
        self._tokenizer = tokenizer
        self._special = {
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special and token.content not in kept
        }
        self._bytes_of, self._strips = _decoder_of(tokenizer)
        self._pieces: dict[int, bytes] = {}

    @classmethod
    def from_folder(cls, folder: Path, kept: Collection[str] = ()) -> "Detokenizer":
        """Reads `tokenizer.json` in `folder`. Raises InputError."""
        path = folder / "tokenizer.json"
        try:
            return cls(Tokenizer.from_file(str(path)), kept)
        except Exception as error:  # the Rust library raises bare Exception for any bad file
            raise InputError(f"{path} is not a usable tokenizer: {error}") from error

    @property
    def has_pieces(self) -> bool:
        """Whether the text of tokens is the text of their pieces, one after the other."""
        return self._bytes_of is not None

    def piece(self, token_id: int) -> bytes:
        """The bytes that a token stands for; none for a special or unknown one."""
        piece = self._pieces.get(token_id)
        if piece is None:
            text = None if token_id in self._special else self._tokenizer.id_to_token(token_id)
            piece = b"" if text is None or self._bytes_of is None else self._bytes_of(text)
            self._pieces[token_id] = piece
        return piece

    def shown(self, token_id: int) -> bytes:
        """What to call a token: the bytes it stands for, or the name of a special one."""
        if self._bytes_of is None or token_id in self._special:
            text = self._tokenizer.decode([token_id], skip_special_tokens=False)
            return str(text).encode()
        return self.piece(token_id)

    def utf8(self, token_ids: Sequence[int]) -> bytes:
        """UTF-8 of the text of `token_ids`, as far as the model made it so."""
        if self._bytes_of is None:
            text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
            return text.encode()
        return self.begin(b"".join(map(self.piece, token_ids)))

    def begin(self, piece: bytes) -> bytes:
        """What `piece` stands for where a text begins with it."""
        return piece[1:] if self._strips and piece.startswith(b" ") else piece

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`."""
        return text_of(self.utf8(token_ids))


def text_of(data: bytes | bytearray) -> str:
    """Text of bytes that may end inside a character."""
    return data.decode("utf-8", errors="replace")


def _decoder_of(tokenizer: Tokenizer) -> tuple[Callable[[str], bytes] | None, bool]:
    """How a token's string becomes bytes, and whether a text loses its first space."""
    decoder = tokenizer.decoder
    steps = _steps(json.loads(decoder.__getstate__())) if decoder is not None else []
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level, False
    spaces = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and steps[0] == spaces:
        if kinds[3:] == []:
            return _sentencepiece, False
        if steps[3:] == [strip]:
            return _sentencepiece, True
    return None, False


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for part in decoder["decoders"] for step in _steps(part)]


def _byte_level(token: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF.__getitem__, token))
    except KeyError:  # an added token may hold any text
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    match = _BYTE.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace("▁", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    named = {chr(byte): byte for byte in printable}
    return named | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
