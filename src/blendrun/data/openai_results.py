"""Answers as the lines of OpenAI's batch endpoint: results, and errors by themselves.

https://platform.openai.com/docs/api-reference/batch/request-output
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

Row = dict[str, Any]

CUSTOM_ID = "custom_id"


class OpenAiResults:
    def __init__(self, model: str, job_id: str, chat_column: str) -> None:
        """Rows in whose `chat_column` there is something are chats."""
        self._model, self._job, self._created = model, job_id[:12], int(time.time())
        self._chat_column = chat_column

    def lines(self, rows: Iterable[Row]) -> Iterator[tuple[bool, Row]]:
        """A line for each input row out of its rows in the outputs, and whether it is an error."""
        for number, answers in enumerate(_by_input(rows)):
            good = [answer for answer in answers if answer["status"] == "ok"]
            custom_id = answers[0][CUSTOM_ID]
            line: Row = {
                "id": f"batch_req_{self._job}_{number}",
                "custom_id": None if custom_id is None else str(custom_id),
            }
            if good:
                line["response"] = {
                    "status_code": 200,
                    "request_id": f"req_{self._job}_{number}",
                    "body": self._body(number, self._is_chat(answers[0]), good),
                }
                line["error"] = None
            else:
                code, _, message = answers[0]["error"].partition(": ")
                line["response"], line["error"] = None, {"code": code, "message": message}
            yield not good, line

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
            "choices": [_choice(is_chat, answer) for answer in answers],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": output,
                "total_tokens": prompt + output,
                "prompt_tokens_details": {"cached_tokens": cached},
            },
        }


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


def _choice(is_chat: bool, answer: Row) -> Row:
    text, index = answer["output_text"], answer.get("output_index") or 0
    message: Row = {"role": "assistant", "content": text}
    if "output_reasoning" in answer:
        message["reasoning_content"] = answer["output_reasoning"] or None
    logprobs = _chat_logprobs(answer) if is_chat else _text_logprobs(answer)
    return {
        "index": index,
        **({"message": message} if is_chat else {"text": text}),
        "logprobs": logprobs,
        "finish_reason": answer["finish_reason"],
        "stop_reason": answer["stop_reason"],
    }


def _name(token_id: int) -> str:
    """A token by its number, as vLLM names it: half a character has no text."""
    return f"token_id:{token_id}"


def _places(answer: Row) -> Iterator[tuple[int, float, list[Row]]]:
    """Token, log-probability and alternatives of each place."""
    values = answer["output_logprobs"]
    tops = answer.get("output_top_logprobs") or [()] * len(values)
    for token, value, top in zip(answer["output_token_ids"], values, tops, strict=True):
        yield token, value, list(top or ())


def _chat_logprobs(answer: Row) -> Row | None:
    if answer.get("output_logprobs") is None:
        return None
    return {
        "content": [
            {
                "token": _name(token),
                "logprob": value,
                "bytes": None,
                "top_logprobs": [
                    {"token": _name(one["token_id"]), "logprob": one["logprob"], "bytes": None}
                    for one in top
                ],
            }
            for token, value, top in _places(answer)
        ]
    }


def _text_logprobs(answer: Row) -> Row | None:
    if answer.get("output_logprobs") is None:
        return None
    places = list(_places(answer))
    return {
        "tokens": [_name(token) for token, _, _ in places],
        "token_logprobs": [value for _, value, _ in places],
        "top_logprobs": [
            {_name(one["token_id"]): one["logprob"] for one in top} for _, _, top in places
        ],
    }
