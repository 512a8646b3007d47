"""Where the text of an answer first holds a stop string whole, token by token.

Compares bytes: a character may come in several tokens, and a token may hold the end of one stop
string and more. The stop string that is complete first counts; of several that are complete at
the same place, the longest.
"""

import codecs
from dataclasses import dataclass

from blendrun.data.detokenizer import Detokenizer, text_of


@dataclass(frozen=True, slots=True)
class Stopped:
    text: str  # before the stop string
    stop: str


class StopSearch:
    """The text of one answer while it grows."""

    def __init__(self, stops: tuple[str, ...], detokenizer: Detokenizer) -> None:
        self._stops = {stop.encode(): stop for stop in stops}
        self._detokenizer = detokenizer
        # U+FFFD stands for bytes that are no text: only the whole text tells where
        self._by_piece = detokenizer.has_pieces and not any("\ufffd" in stop for stop in stops)
        self._data = bytearray()

    def catch_up(self, token_ids: list[int]) -> None:
        """Take the tokens of an answer that goes on: none of them brings its end."""
        if self._by_piece:  # the other way reads the whole text again with every token
            known: list[int] = []
            for token in token_ids:
                known.append(token)
                self.add(known)

    def add(self, token_ids: list[int]) -> Stopped | None:
        """The end of the answer, if the last of `token_ids`, all that it has, brings one."""
        if self._by_piece:
            data = self._data
            known = len(data)
            piece = self._detokenizer.piece(token_ids[-1])
            data += piece if known else self._first(piece, token_ids)
        else:
            known = 0
            text, _ = codecs.utf_8_decode(self._detokenizer.utf8(token_ids), "replace", False)
            data = bytearray(text.encode())  # without the bytes of a character not complete yet
        found = []
        for stop in self._stops:
            start = data.find(stop, max(0, known - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start, stop))
        if not found:
            return None
        _, start, stop = min(found)
        return Stopped(text_of(data[:start]), self._stops[stop])

    def _first(self, piece: bytes, token_ids: list[int]) -> bytes:
        """`piece`, if it is the first of the text."""
        begun = any(self._detokenizer.piece(token) for token in token_ids[:-1])
        return piece if begun else self._detokenizer.begin(piece)
