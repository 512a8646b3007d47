"""What JSON does not know, in a line of JSON."""

import datetime
import decimal
import json

import pytest

from blendrun.data.exports import json_line


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime.datetime(2024, 1, 2, 3, 4), "2024-01-02T03:04:00"),
        (datetime.date(2024, 1, 2), "2024-01-02"),
        (decimal.Decimal("1.50"), "1.50"),
        (b"\xff\x00", "/wA="),
    ],
)
def test_values_without_a_kind_of_their_own_are_text(value: object, text: str):
    assert json.loads(json_line({"a": [value]})) == {"a": [text]}


def test_what_is_not_a_number_is_null():
    line = json_line({"a": float("nan"), "b": [1.5, float("inf")], "c": {"d": float("-inf")}})
    assert json.loads(line) == {"a": None, "b": [1.5, None], "c": {"d": None}}


def test_text_stays_as_it_is_and_in_one_line():
    line = json_line({"a": "ö🙂\u2028\n"})
    assert "ö🙂".encode() in line
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"a": "ö🙂\u2028\n"}
