"""Scores of continuations become lists of their row."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blendrun.data.answers import answers_table
from blendrun.data.scores import SCORE_COLUMNS, Score, gathered

SCORE = st.builds(
    lambda logprob, num_tokens, is_greedy: Score(logprob, num_tokens, is_greedy),
    st.floats(-50, 0),
    st.integers(1, 5),
    st.booleans(),
)
ROW = st.tuples(st.booleans(), st.lists(st.none() | SCORE, min_size=1, max_size=4))  # None: error


@given(st.lists(ROW, max_size=6))
def test_a_row_has_its_scores_in_order_or_its_first_error(rows):
    answers = [
        (number, index, is_scored, score)
        for number, (is_scored, scores) in enumerate(rows)
        for index, score in enumerate(scores)
    ]
    table = answers_table(
        row=[number for number, *_ in answers],
        output_index=np.array([index for _, index, *_ in answers], np.int32),
        output_text=[""] * len(answers),
        output_token_ids=[[]] * len(answers),
        finish_reason=["length"] * len(answers),
        num_prompt_tokens=[7 + (score.num_tokens if score else 0) for *_, score in answers],
        num_cached_tokens=[7 - index for _, index, *_ in answers],
        error=[None if score else f"bad: {index}" for _, index, _, score in answers],
        score=[score if is_scored else None for *_, is_scored, score in answers],
    )
    is_scored = np.array([scored for _, _, scored, _ in answers], np.bool_)
    made = gathered(_wide(table), is_scored).to_pylist()
    for number, (scored, scores) in enumerate(rows):
        mine = [answer for answer in made if answer["row"] == number]
        if not scored:
            assert [answer["output_index"] for answer in mine] == list(range(len(scores)))
            continue
        (answer,) = mine
        assert answer["output_index"] == 0
        values = [answer[name] for name in SCORE_COLUMNS]
        if None in scores:
            assert answer["status"] == "error"
            assert answer["error"] == f"bad: {scores.index(None)}"
            assert values == [None] * 3
        else:
            assert values == [list(part) for part in zip(*scores, strict=True)]
            assert (answer["num_prompt_tokens"], answer["num_cached_tokens"]) == (
                7,
                8 - len(scores),
            )


def _wide(table):
    """With the types in which answers are read back."""
    from blendrun.data.results import _WIDE_SCHEMA

    return table.cast(_WIDE_SCHEMA).combine_chunks()
