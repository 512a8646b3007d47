"""Reasoning apart from the answer, where a chat template marks it."""

import json

import pytest

from blendrun.data.reasoning import ReasoningMarks

THINK = ReasoningMarks("<think>", "</think>")


@pytest.mark.parametrize(
    ("answer", "is_open", "reasoning", "text"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, "hm", "yes"),
        ("\n<think>hm</think> yes", False, "hm", " yes"),
        ("hm\n</think>\n\nyes", True, "hm", "yes"),
        ("<think>\nhm</think>yes", True, "hm", "yes"),  # opened twice
        ("hm", True, "hm", ""),
        ("<think>hm", False, "hm", ""),
        ("", True, "", ""),
        ("yes", False, "", "yes"),
        ("yes </think> no", False, "", "yes </think> no"),
        ("say <think>a</think>", False, "", "say <think>a</think>"),
        ("a</think>b</think>", True, "a", "b</think>"),
        ("<think></think>yes", False, "", "yes"),
    ],
)
def test_an_answer_is_cut_at_the_end_mark(answer, is_open, reasoning, text):
    assert THINK.split(answer, is_open) == (reasoning, text)


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [("a<think>\n", True), ("<think>", True), ("<think>\n\n</think>\n\n", False), ("think", False)],
)
def test_a_prompt_that_ends_with_the_first_mark_opens(prompt, is_open):
    assert THINK.is_open(prompt) is is_open


@pytest.mark.parametrize(
    ("template", "marks"),
    [
        ("{{ m.split('</think>')[-1] }}", THINK),
        ("[THINK]{{ m }}[/THINK]", ReasoningMarks("[THINK]", "[/THINK]")),
        ("{{ m }}", None),
        (
            [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "</think>"}],
            THINK,
        ),
    ],
)
def test_marks_are_those_of_the_template(template, marks, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert ReasoningMarks.from_folder(tmp_path) == marks


def test_a_model_without_a_template_marks_nothing(tmp_path):
    assert ReasoningMarks.from_folder(tmp_path) is None
