"""Sampling parameters: what is refused."""

from dataclasses import replace

import pytest

from blendrun.data.sampling import SamplingParams
from blendrun.errors import InputError


def test_defaults_and_limits_are_valid():
    SamplingParams().validate()
    SamplingParams(0, 2.0, 1e-6, 50, 1.0, -(2**63), ("\n",), True, (3,)).validate()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 2**31),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", 1e39),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", float("nan")),
        ("top_k", -1),
        ("min_p", 1.5),
        ("min_p", float("nan")),
        ("seed", 2**63),
        ("stop", ("a", "")),
        ("stop_token_ids", (5, -1)),
        ("stop_token_ids", (2**31,)),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("nan")),
        ("repetition_penalty", float("inf")),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", float("nan")),
        ("logit_bias", ((-1, 3.0),)),
        ("logprobs", -1),
        ("logprobs", 21),
        ("prompt_logprobs", -1),
        ("prompt_logprobs", 21),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field, value):
    name = "stop string" if field == "stop" else field
    with pytest.raises(InputError, match=name):
        replace(SamplingParams(), **{field: value}).validate()


def test_token_ids_are_held_against_a_known_vocabulary():
    params = SamplingParams(stop_token_ids=(9,))
    params.validate(10)
    with pytest.raises(InputError, match=r"stop_token_ids must lie in the vocabulary \(0 to 8\)"):
        params.validate(9)
