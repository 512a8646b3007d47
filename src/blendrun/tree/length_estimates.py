"""Mean output length of subtrees, from outputs that are known of some of their prompts.

A node without enough of them is estimated by the nearest node above that has: so siblings stand in
for each other.
"""

from dataclasses import dataclass
from math import sqrt

import numba
import numpy as np

from blendrun.tree.annotate import Float64
from blendrun.tree.prefix_tree import Int32, Int64, PrefixTree

ENOUGH = 16  # outputs that make a mean
_RESAMPLES = 200
_MOST_RESAMPLED = 1000  # above so many outputs skewness no longer matters
_Z_80 = 1.2815515655446004  # 90 % of a normal distribution lie below


@dataclass(frozen=True, slots=True)
class MeanLength:
    """A mean with its nominal 80 % interval, in tokens."""

    mean: float
    low: float
    high: float


def mean_length(lengths: Int32, total: int, seed: int = 0) -> MeanLength:
    """Mean output length of `total` requests, of which a random sample has these `lengths`.

    Output lengths are skewed to the right, and Student's interval would end too low: its upper end
    is a bootstrap-t one (Hall, "Theoretical Comparison of Bootstrap Confidence Intervals", 1988).
    Both ends allow for the part of the requests that is known.

    Raises:
        ValueError: there are no lengths.
    """
    n = len(lengths)
    if n == 0:
        raise ValueError("no lengths")
    sample = lengths.astype(np.float64)
    mean = float(sample.mean())
    if n == 1:
        return MeanLength(mean, min(1.0, mean), 4 * mean)
    unknown = sqrt(max(1 - n / total, 0.0))
    error = float(sample.std(ddof=1)) / sqrt(n) * unknown
    below = above = _student(n - 1)
    if error > 0 and n <= _MOST_RESAMPLED:
        above = -_low_bootstrap_t(sample, seed)
    return MeanLength(mean, max(mean - below * error, min(1.0, mean)), mean + above * error)


def _low_bootstrap_t(sample: Float64, seed: int) -> float:
    """The 10 % quantile of the studentized mean, by resampling."""
    n = len(sample)
    drawn = sample[np.random.default_rng(seed).integers(0, n, (_RESAMPLES, n))]
    deviation = drawn.std(axis=1, ddof=1)
    deviation = np.maximum(deviation, 1e-9 * sample.mean())  # a resample of equal values
    t = (drawn.mean(axis=1) - sample.mean()) * sqrt(n) / deviation
    return float(np.quantile(t, 0.1))


def _student(freedom: int) -> float:
    """90 % quantile of Student's t (Abramowitz and Stegun 26.7.5)."""
    z, v = _Z_80, float(freedom)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def nearest_means(tree: PrefixTree, node: Int32, lengths: Int32) -> tuple[Float64, Int64]:
    """Mean length that holds for each node, [K], and how many outputs it is the mean of, [K].

    Args:
        node, lengths: [M] known outputs and the nodes they belong to, whatever is above them too.
    """
    count = np.bincount(node, minlength=tree.num_nodes).astype(np.int64)
    total = np.bincount(node, lengths, tree.num_nodes)
    mean: Float64
    mean, count = _nearest(tree.parent, count, total)
    return mean, count


@numba.njit(cache=True)
def _nearest(parent: Int32, count: Int64, total: Float64) -> tuple[Float64, Int64]:
    for v in range(len(parent) - 1, 0, -1):
        count[parent[v]] += count[v]
        total[parent[v]] += total[v]
    mean = np.zeros(len(parent))
    if count[0] > 0:
        mean[0] = total[0] / count[0]
    for v in range(1, len(parent)):
        if count[v] >= ENOUGH:
            mean[v] = total[v] / count[v]
        else:
            mean[v], count[v] = mean[parent[v]], count[parent[v]]
    return mean, count
