"""Column names: which are looked at, and which are refused."""

import pytest

from blendrun.data.columns import ColumnNames, check_clash, check_columns
from blendrun.errors import InputError


def test_by_default_any_prompt_column_will_do():
    for name in ("prompt", "messages", "prompt_token_ids"):
        check_columns(ColumnNames(), ["id", name], "f")
    with pytest.raises(InputError, match="no column 'prompt' or 'messages' or") as caught:
        check_columns(ColumnNames(), ["id", "text"], "f")
    assert "id, text" in caught.value.hint


@pytest.mark.parametrize("field", ["prompt", "messages", "token_ids", "max_tokens", "output_len"])
def test_a_column_that_was_named_must_exist(field):
    with pytest.raises(InputError, match="f has no column 'other'") as caught:
        check_columns(ColumnNames.from_flags(**{field: "other"}), ["prompt", "x"], "f")
    assert "prompt, x" in caught.value.hint


def test_naming_a_column_by_its_default_name_still_asks_for_it():
    check_columns(ColumnNames.from_flags(prompt=None), ["messages"], "f")
    with pytest.raises(InputError, match="no column 'prompt'"):
        check_columns(ColumnNames.from_flags(prompt="prompt"), ["messages"], "f")


def test_a_named_prompt_column_is_the_only_one_looked_at():
    names = ColumnNames(prompt="question")
    assert names.prompt_fields() == ("prompt",)
    assert "question" in names.used()
    assert "messages" not in names.used()


def test_a_column_that_the_output_needs_is_refused_with_a_way_out():
    check_clash(["prompt", "outputs"], "f")
    with pytest.raises(InputError, match="'output_text'") as caught:
        check_clash(["prompt", "output_text"], "f")
    assert caught.value.hint.startswith("rename it")
