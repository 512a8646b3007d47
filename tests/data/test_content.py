"""What an answer depends on changes the hash of its row, and nothing else does."""

import numpy as np
import pytest

from blendrun.data.content import as_binary, as_bytes, content_hashes
from blendrun.data.flat_tokens import FlatTokens
from blendrun.data.param_kinds import PARAM_KINDS, RARE_PARAMS

PROMPTS = [[1, 2, 3], [4], [1, 2, 3]]
OTHER_RARE = {
    "stop": ("a", "b"),
    "logprobs": 0,
    "prompt_logprobs": 3,
    "stop_token_ids": (7,),
    "logit_bias": ((3, 1.5), (1, -2.0)),
    "structure": ("regex", "a+"),
    "score_start": 2,
}


def numbers(count: int) -> dict[str, np.ndarray]:
    return {
        name: np.ones(count, kind.arrow.to_pandas_dtype())
        for name, kind in PARAM_KINDS.items()
        if not kind.is_rare
    }


def hashes(prompts, rare=(), **changed) -> list[bytes]:
    tokens = FlatTokens.of([np.array(prompt, np.int32) for prompt in prompts])
    values = numbers(len(prompts)) | changed
    return as_binary(content_hashes(values, dict(rare), tokens)).to_pylist()


def test_equal_rows_have_equal_hashes_wherever_they_stand():
    first, other, again = hashes(PROMPTS)
    assert first == again != other
    assert hashes([[4], [1, 2, 3]]) == [other, first]
    assert hashes([]) == []


def test_the_border_between_prompts_counts():
    assert len({*hashes([[1, 2], [3]]), *hashes([[1], [2, 3]]), *hashes([[1, 2, 3]])}) == 5


@pytest.mark.parametrize("name", sorted(numbers(1)))
def test_each_number_changes_its_row_alone(name: str):
    changed = numbers(3)[name]
    changed[1] = 0
    before, after = hashes(PROMPTS), hashes(PROMPTS, **{name: changed})
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, name == "n", True]


@pytest.mark.parametrize("name", RARE_PARAMS)
def test_each_rare_parameter_changes_its_row_alone(name: str):
    before, after = hashes(PROMPTS), hashes(PROMPTS, {name: [None, OTHER_RARE[name], None]})
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]


def test_what_changes_nothing_is_no_difference():
    bare = hashes(PROMPTS)
    assert hashes(PROMPTS, {"stop": [None, (), None], "logit_bias": [(), (), ()]}) == bare
    assert hashes(PROMPTS, temperature=-np.zeros(3, np.float32)) == hashes(
        PROMPTS, temperature=np.zeros(3, np.float32)
    )
    one, two = ({"stop": [stop] * 3} for stop in (("a", "b"), ("b", "a", "a")))
    assert hashes(PROMPTS, one) == hashes(PROMPTS, two)


def test_values_of_one_width_are_bytes_again():
    column = as_binary(np.arange(12, dtype=np.uint8).reshape(3, 4))
    assert as_bytes(column[1:]).tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert as_bytes(column[:0]).shape == (0, 4)
