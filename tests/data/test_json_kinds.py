"""Types of JSON columns: from what was seen, never guessed from text."""

import pytest

from blendrun.data.json_kinds import KindTracker

CHAT = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], "null"),
        ([None, None], "null"),
        (["2024-01-01", "7", None], "string"),
        ([True, None], "bool"),
        ([1, -(2**63), 2**63 - 1, None], "int64"),
        ([2**63], "json"),
        ([12345678901234567890123], "json"),
        ([1, 0.5], "float64"),
        ([1.5], "float64"),
        ([2**53, 0.5], "float64"),
        ([2**53 + 1, 0.5], "json"),
        ([float("inf")], "json"),
        ([1, True], "json"),
        (["1", 1], "json"),
        ([{"a": 1}], "json"),
        ([[1, 2], [], None], "int_list"),
        ([[1, 2**63]], "json"),
        ([[1, True]], "json"),
        ([[1], [0.5]], "json"),
        ([[]], "json"),
        ([CHAT, [], None], "messages"),
        ([[{"content": None, "role": "user"}]], "messages"),
        ([CHAT, [1]], "json"),
        ([[{"role": "user"}]], "json"),
        ([[{**CHAT[0], "name": "x"}]], "json"),
        ([[{"role": "user", "content": ["part"]}]], "json"),
        ([["a", "b"]], "json"),
    ],
)
def test_the_kind_holds_every_value_exactly(values, kind):
    tracker = KindTracker()
    tracker.add({"x": None})
    for value in values:
        tracker.add({"x": value})
    assert tracker.kinds() == {"x": kind}


def test_columns_come_in_order_of_first_sight():
    tracker = KindTracker()
    tracker.add({"b": 1})
    tracker.add({"a": "x", "b": 2})
    assert list(tracker.kinds().items()) == [("b", "int64"), ("a", "string")]
