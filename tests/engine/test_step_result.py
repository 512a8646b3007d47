"""What is left of a step when some of its tokens are nobody's."""

import numpy as np

from blendrun.engine.logprobs import Logprobs, StepLogprobs
from blendrun.engine.step_result import StepResult


def test_rows_keep_their_tokens_and_log_probabilities():
    found = Logprobs(
        np.array([-0.1, -0.3, -0.4], np.float32),
        np.array([[1], [3], [4]], np.int32),
        np.array([[-0.1], [-0.2], [-0.4]], np.float32),
    )
    tokens, bad = np.array([10, 11, 12, 13, 14], np.int32), np.array([0, 0, 1, 0, 0], np.bool_)
    logprobs = StepLogprobs(np.array([1, 3, 4]), found)  # of tokens 11, 13 and 14
    step = StepResult(tokens, bad, 0.1, 0.2, 0.3, logprobs)
    some = step.of_rows(np.array([1, 0, 1, 1, 1], np.bool_))
    assert some.token_ids.tolist() == [10, 12, 13, 14]
    assert some.bad.tolist() == [False, True, False, False]
    assert some.logprobs is not None
    assert some.logprobs.rows.tolist() == [2, 3]
    assert some.logprobs.logprobs.top_ids.tolist() == [[3], [4]]
    assert some.logprobs.logprobs.chosen.tolist() == found.chosen[1:].tolist()
    assert (some.attention_s, some.model_s, some.sample_s) == (0.1, 0.2, 0.3)
