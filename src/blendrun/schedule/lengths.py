"""Expected output length of every request, and where the expectation comes from.

In order of trust: a column of the input; what the same prompt gave in an earlier run; what prompts
of the same subtree gave; `max_tokens`; a guess. What the run itself learns is the batcher's.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from blendrun.schedule.earlier_run import Observed
from blendrun.tree.length_estimates import MeanLength, mean_length, nearest_means
from blendrun.tree.prefix_tree import Int32, PrefixTree
from blendrun.tree.strata import top_subtrees

COLUMN, SAME_PROMPT, SUBTREE = "column", "same prompt", "subtree"
MAX_TOKENS, PRIOR = "max_tokens", "prior"
KNOWN = (COLUMN, SAME_PROMPT)  # not learned during the run
ORIGINS = (COLUMN, SAME_PROMPT, SUBTREE, MAX_TOKENS, PRIOR)


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedLengths:
    """Output lengths of N requests before they run."""

    tokens: Int32  # [N] at most `max_tokens`
    origin: npt.NDArray[np.int8]  # [N] index into ORIGINS
    low: Int32  # [N] sums over these are the ends of a range that likely holds the truth
    high: Int32  # [N]

    def is_guess(self, requests: pa.Table) -> npt.NDArray[np.bool_]:
        """Of whose length nothing is known but a limit, [N]."""
        ignore_eos = np.asarray(requests["ignore_eos"], np.bool_)
        guesses = [ORIGINS.index(name) for name in (PRIOR, MAX_TOKENS)]
        guess: npt.NDArray[np.bool_] = np.isin(self.origin, guesses) & ~ignore_eos
        return guess

    def origin_names(self) -> pa.Array:
        """[N] of strings."""
        return pa.DictionaryArray.from_arrays(self.origin, pa.array(ORIGINS)).cast(pa.string())


def expected_lengths(
    requests: pa.Table, prior_output_len: int, tree: PrefixTree, observed: Observed | None = None
) -> ExpectedLengths:
    """Expected output tokens of every request.

    A length that the input states is taken (at most `max_tokens`), then the mean of an earlier
    run's outputs of the same prompt, then that of the nearest subtree. Else `max_tokens` itself
    where end-of-sequence is ignored or it is no more than the prior; a larger one is a safety limit
    more than a forecast, and the prior stands in for it. At least 1.
    """
    max_tokens = requests["max_tokens"].to_numpy()
    ignore_eos = requests["ignore_eos"].to_numpy(zero_copy_only=False)
    exact = ignore_eos | (max_tokens <= prior_output_len)
    guess = np.where(exact, max_tokens, prior_output_len)
    origin = np.where(exact, ORIGINS.index(MAX_TOKENS), ORIGINS.index(PRIOR)).astype(np.int8)
    # a guess may be off by four either way; a small max_tokens may never be reached
    low = np.where(ignore_eos, max_tokens, np.maximum(guess // 4, 1))
    high = np.where(exact, max_tokens, np.minimum(4 * guess, max_tokens))
    if observed is not None and len(observed.node):
        for source in (_of_subtree(tree, observed), _of_same_prompt(tree, observed)):
            known = source.known & ~ignore_eos
            origin[known] = ORIGINS.index(source.origin)
            guess = np.where(known, source.mean, guess)
            low, high = np.where(known, source.low, low), np.where(known, source.high, high)
    stated = requests["expected_len"].fill_null(0).to_numpy()
    origin[stated > 0] = ORIGINS.index(COLUMN)
    columns = [np.where(stated > 0, stated, values) for values in (guess, low, high)]
    tokens, low, high = (
        np.clip(np.rint(column), 1, np.maximum(max_tokens, 1)).astype(np.int32)
        for column in columns
    )
    return ExpectedLengths(tokens, origin, low, high)


def is_known(requests: pa.Table) -> npt.NDArray[np.bool_]:
    """Whose length is not learned during the run, [N]: stated, seen, or ended by `max_tokens`."""
    known = np.asarray(pc.is_in(requests["length_from"], pa.array(KNOWN)), np.bool_)
    return known | np.asarray(requests["ignore_eos"], np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    origin: str
    known: npt.NDArray[np.bool_]  # [N]
    mean: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


def _of_same_prompt(tree: PrefixTree, observed: Observed) -> _Source:
    mean, count = observed.of_same_prompt(tree)
    return _Source(SAME_PROMPT, count > 0, mean, mean, mean)


def _of_subtree(tree: PrefixTree, observed: Observed) -> _Source:
    """The nearest mean for each request, and the range of its top subtree around it."""
    means, _ = nearest_means(tree, observed.node, observed.lengths)
    stratum, _ = top_subtrees(tree)
    ranges = stratum_means(tree, observed)
    below = np.array([r.low / r.mean if r.mean > 0 else 1.0 for r in ranges])
    above = np.array([r.high / r.mean if r.mean > 0 else 1.0 for r in ranges])
    mean = means[tree.leaf_node]
    known = np.ones(tree.num_requests, bool)
    return _Source(SUBTREE, known, mean, mean * below[stratum], mean * above[stratum])


def stratum_means(tree: PrefixTree, observed: Observed) -> list[MeanLength]:
    """Mean output length of each top subtree with its range; of all where it has no outputs."""
    stratum, nodes = top_subtrees(tree)
    mine = observed.strata(tree)
    total = np.bincount(stratum, minlength=len(nodes))
    whole = mean_length(observed.lengths, max(tree.num_requests, len(observed.lengths)))
    means = []
    for number in range(len(nodes)):
        lengths = observed.lengths[mine == number]
        many = max(int(total[number]), len(lengths))
        means.append(mean_length(lengths, many) if len(lengths) else whole)
    return means
