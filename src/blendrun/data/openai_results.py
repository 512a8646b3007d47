"""Answers as the lines of OpenAI's batch endpoint: results, and errors by themselves.

https://platform.openai.com/docs/api-reference/batch/request-output
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from blendrun.data.detokenizer import Detokenizer
from blendrun.data.openai_logprobs import OpenAiLogprobs

Row = dict[str, Any]

CUSTOM_ID = "custom_id"


# what an endpoint answers with status 400; other errors have no response
_OF_THE_REQUEST = frozenset(
    {"bad_request", "bad_type", "empty_prompt", "context_length", "template_error"}
    | {"bad_token_id", "bad_parameter", "bad_schema"}
)


class OpenAiResults:
    def __init__(
        self, model: str, job_id: str, chat_column: str, tokens: Callable[[], Detokenizer]
    ) -> None:
        """Rows in whose `chat_column` there is something are chats.

        `tokens` is called where a row has log-probabilities.
        """
        self._tokens = tokens
        self._logprobs: OpenAiLogprobs | None = None
        self._model, self._job, self._created = model, job_id[:12], int(time.time())
        self._chat_column = chat_column
        self._number = itertools.count()  # of input rows, over all parts

    def lines(self, rows: Iterable[Row]) -> Iterator[tuple[bool, Row]]:
        """A line for each input row out of its rows in the outputs, and whether it is an error."""
        for answers in _by_input(rows):
            number = next(self._number)
            good = [answer for answer in answers if answer["status"] == "ok"]
            custom_id = answers[0][CUSTOM_ID]
            line: Row = {
                "id": f"batch_req_{self._job}_{number}",
                "custom_id": None if custom_id is None else str(custom_id),
            }
            line["response"], line["error"] = None, None
            if good:
                body = self._body(number, self._is_chat(answers[0]), good)
                line["response"] = self._response(number, 200, body)
            else:
                code, _, message = answers[0]["error"].partition(": ")
                if code in _OF_THE_REQUEST:
                    line["response"] = self._response(number, 400, _refusal(code, message))
                else:
                    line["error"] = {"code": code, "message": message}
            yield not good, line

    def _response(self, number: int, status_code: int, body: Row) -> Row:
        request_id = f"req_{self._job}_{number}"
        return {"status_code": status_code, "request_id": request_id, "body": body}

    def _is_chat(self, row: Row) -> bool:
        url = row.get("url")  # of a row in the format of OpenAI's batch requests
        if isinstance(url, str):
            return url.endswith("chat/completions")
        return row.get(self._chat_column) is not None

    def _body(self, number: int, is_chat: bool, answers: Sequence[Row]) -> Row:
        prompt = answers[0]["num_prompt_tokens"]
        output = sum(answer["num_output_tokens"] for answer in answers)
        cached = answers[0]["num_cached_tokens"]
        return {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{self._job}-{number}",
            "object": "chat.completion" if is_chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": [self._choice(is_chat, answer) for answer in answers],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": output,
                "total_tokens": prompt + output,
                "prompt_tokens_details": {"cached_tokens": cached},
            },
            "system_fingerprint": None,
        }

    def _choice(self, is_chat: bool, answer: Row) -> Row:
        text, index = answer["output_text"], answer.get("output_index") or 0
        message: Row = {"role": "assistant", "content": text, "refusal": None}
        if "output_reasoning" in answer:
            message["reasoning_content"] = answer["output_reasoning"] or None
        return {
            "index": index,
            **({"message": message} if is_chat else {"text": text}),
            "logprobs": self._choice_logprobs(is_chat, answer),
            "finish_reason": answer["finish_reason"],
            "stop_reason": answer["stop_reason"],
        }

    def _choice_logprobs(self, is_chat: bool, answer: Row) -> Row | None:
        if answer.get("output_logprobs") is None:
            return None
        if self._logprobs is None:
            self._logprobs = OpenAiLogprobs(self._tokens())
        return self._logprobs.of_chat(answer) if is_chat else self._logprobs.of_text(answer)


def _by_input(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows of each input row: its answers follow each other."""
    answers: list[Row] = []
    for row in rows:
        if answers and not row.get("output_index"):
            yield answers
            answers = []
        answers.append(row)
    if answers:
        yield answers


def _refusal(code: str, message: str) -> Row:
    """The body of a response that says why there is no answer."""
    return {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": None,
            "code": code,
        }
    }
