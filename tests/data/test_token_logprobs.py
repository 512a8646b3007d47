"""Columns of log-probabilities: lists in lists, with nulls where there is nothing to say."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blendrun.data.token_logprobs import CHOSEN_TYPE, TOP_TYPE, TokenLogprobs, logprob_columns


def made(length: int, k: int, first_is_missing: bool, seed: int) -> TokenLogprobs:
    rng = np.random.default_rng(seed)
    chosen = rng.standard_normal(length).astype(np.float32)
    if first_is_missing and length:
        chosen[0] = np.nan
    top_ids = rng.integers(0, 99, (length, k), np.int32)
    return TokenLogprobs(chosen, top_ids, rng.standard_normal((length, k)).astype(np.float32))


@given(
    st.lists(
        st.none()
        | st.builds(made, st.integers(0, 4), st.integers(0, 3), st.booleans(), st.integers(0, 9)),
        max_size=8,
    )
)
def test_every_entry_comes_back(values: list[TokenLogprobs | None]):
    chosen, top = logprob_columns(values)
    assert (chosen.type, top.type) == (CHOSEN_TYPE, TOP_TYPE)
    for value, probabilities, alternatives in zip(
        values, chosen.to_pylist(), top.to_pylist(), strict=True
    ):
        if value is None:
            assert probabilities is alternatives is None
            continue
        missing = np.isnan(value.chosen)
        assert probabilities == [
            None if gone else p for p, gone in zip(value.chosen.tolist(), missing, strict=True)
        ]
        if not value.top.shape[1]:
            assert alternatives is None
            continue
        for place, found in enumerate(alternatives):
            if missing[place]:
                assert found is None
                continue
            assert [one["token_id"] for one in found] == value.top_ids[place].tolist()
            assert [one["logprob"] for one in found] == value.top[place].tolist()
        assert len(alternatives) == len(value.chosen)
