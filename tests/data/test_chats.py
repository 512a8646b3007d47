"""Chats in the forms that people have, brought to the one that templates take."""

import json

import numpy as np
import pytest

from blendrun.data.chats import as_chat
from blendrun.data.rows import BadRowError

USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (USER, USER),
        ({**USER, "name": None}, {**USER, "name": None}),
        ({"role": "user", "content": [{"type": "text", "text": "hi"}]}, USER),
        ({**USER, "content": ["a", {"type": "text", "text": "b"}]}, {**USER, "content": "a\nb"}),
        ({**USER, "content": []}, {**USER, "content": ""}),
        ({"from": "human", "value": "hi"}, USER),
        ({"from": "gpt", "value": "ho", "w": 1}, {"role": "assistant", "content": "ho", "w": 1}),
        ({"from": "system", "value": "s"}, {"role": "system", "content": "s"}),
    ],
)  # fmt: skip
def test_a_message_takes_the_form_of_templates(given, expected):
    assert as_chat([given]).messages == [expected]


def test_arguments_of_tool_calls_become_objects():
    def call(arguments):
        return {"type": "function", "function": {"name": "f", "arguments": arguments}}

    message = {"role": "assistant", "content": None, "tool_calls": [call('{"x": 1}'), call("{")]}
    (made,) = as_chat([message]).messages
    assert made["tool_calls"] == [call({"x": 1}), call("{")]
    assert made["content"] is None
    assert message["tool_calls"][0] == call('{"x": 1}')


def test_tools_may_be_json_text_and_none_is_none():
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert as_chat([USER], json.dumps(tools)).tools == as_chat([USER], tools).tools == tools
    assert as_chat([USER]).tools is as_chat([USER], []).tools is None
    assert as_chat([USER], np.array([], np.int64)).tools is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "user", "content": [{"type": "image_url"}]}, "not a part of type 'image_url'"),
        ({"role": "user", "content": [5]}, "parts of text, not a value of type int"),
        ({"role": "user", "content": [{"type": "text"}]}, "has no text"),
        ({"role": "assistant", "tool_calls": []}, "content must be text, not null"),
        ({"from": 5, "value": "x"}, "no role that is text"),
        ({"from": "human"}, "content must be text, not null"),
    ],
)
def test_a_message_that_no_template_takes_is_bad(message, reason):
    with pytest.raises(BadRowError, match=reason):
        as_chat([USER, message])


@pytest.mark.parametrize("tools", ["{", "{}", 5, ["f"]])
def test_tools_that_are_no_list_of_objects_are_bad(tools):
    with pytest.raises(BadRowError, match="tools"):
        as_chat([USER], tools)
