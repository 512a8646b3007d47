"""Log-probabilities as OpenAI's chat completions and completions have them.

https://platform.openai.com/docs/api-reference/chat/object, …/completions/object
"""

import codecs
from collections.abc import Iterator, Sequence
from typing import Any

from blendrun.data.detokenizer import Detokenizer

Row = dict[str, Any]


class OpenAiLogprobs:
    """Names tokens by what they stand for; bytes that are no text are written as `\\xf0`."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer

    def of_chat(self, answer: Row) -> Row:
        content = []
        for token, value, top in _places(answer):
            alternatives = [self._entry(one["token_id"], one["logprob"]) for one in top]
            content.append({**self._entry(token, value), "top_logprobs": alternatives})
        return {"content": content, "refusal": None}

    def of_text(self, answer: Row) -> Row:
        places = list(_places(answer))
        return {
            "tokens": [self._name(token) for token, _, _ in places],
            "token_logprobs": [value for _, value, _ in places],
            "top_logprobs": [
                {self._name(one["token_id"]): one["logprob"] for one in top} for _, _, top in places
            ],
            "text_offset": self._offsets([token for token, _, _ in places]),
        }

    def _entry(self, token_id: int, logprob: float) -> Row:
        data = self._detokenizer.shown(token_id)
        text = data.decode("utf-8", "backslashreplace")
        return {"token": text, "logprob": logprob, "bytes": list(data)}

    def _name(self, token_id: int) -> str:
        data = self._detokenizer.shown(token_id)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + data.decode("utf-8", "backslashreplace")

    def _offsets(self, token_ids: Sequence[int]) -> list[int]:
        """Where in the text of the answer each token begins, in characters."""
        decoder, offsets, length = codecs.getincrementaldecoder("utf-8")("replace"), [], 0
        for token_id in token_ids:
            offsets.append(length)
            length += len(decoder.decode(self._detokenizer.shown(token_id)))
        return offsets


def _places(answer: Row) -> Iterator[tuple[int, float, list[Row]]]:
    """Token, log-probability and alternatives of each place."""
    values = answer["output_logprobs"]
    tops = answer.get("output_top_logprobs") or [()] * len(values)
    for token, value, top in zip(answer["output_token_ids"], values, tops, strict=True):
        yield token, value, list(top or ())
