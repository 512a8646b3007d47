"""Expected output length of every request, and where the expectation comes from."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from blendrun.tree.prefix_tree import Int32

COLUMN, MAX_TOKENS, PRIOR = "column", "max_tokens", "prior"


def expected_lengths(
    requests: pa.Table, prior_output_len: int
) -> tuple[Int32, npt.NDArray[np.str_]]:
    """Expected output tokens int32[N] and their origin [N]: `column`, `max_tokens` or `prior`.

    A length that the input states is taken (at most `max_tokens`). Else `max_tokens` itself where
    end-of-sequence is ignored or it is no more than the prior; a larger one is a safety limit
    more than a forecast, and the prior stands in for it. At least 1.
    """
    max_tokens = requests["max_tokens"].to_numpy()
    stated = requests["expected_len"].fill_null(0).to_numpy()
    exact = requests["ignore_eos"].to_numpy() | (max_tokens <= prior_output_len)
    origin = np.where(stated > 0, COLUMN, np.where(exact, MAX_TOKENS, PRIOR))
    guess = np.where(exact, max_tokens, prior_output_len)
    lengths = np.where(stated > 0, np.minimum(stated, max_tokens), guess)
    return np.maximum(lengths, 1).astype(np.int32), origin
