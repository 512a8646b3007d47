"""How good are output lengths that a sample tells? Lengths of real traces, hidden but for a sample.

    python benchmarks/bench_lengths.py [--traces DIR] [--trials 200]

A job of 57 groups of prompts, 200 to 5,000 each; every group draws its lengths from one trace.
The sample is the one that a run begins with: 1 % of each top subtree, at least 16. For each group:
the error of its mean, over 0.8 CV / sqrt(n) (what a normal distribution would give), and how often
the nominal 80 % interval holds the true mean. Beside it the plain mean of 1 % of all requests.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from blendrun.schedule.earlier_run import Observed
from blendrun.schedule.lengths import stratum_means
from blendrun.schedule.step.begin import sampled
from blendrun.tree.build import build_tree
from blendrun.tree.strata import top_subtrees

_TRACES = Path(__file__).parents[2] / "shared/data/traces"
_GROUPS = 57


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=_TRACES)
    parser.add_argument("--trials", type=int, default=200)
    options = parser.parse_args()
    traces = {path.stem: _lengths(path) for path in sorted(options.traces.glob("*.parquet"))}
    rng = np.random.default_rng(0)
    size = np.exp(rng.uniform(np.log(200), np.log(5000), _GROUPS)).astype(int)
    group = rng.permutation(np.repeat(np.arange(_GROUPS), size))
    # a group's prompts share one token, and each has one of its own
    tokens = np.stack([group, _GROUPS + np.arange(len(group))], axis=1).astype(np.int32).ravel()
    tree = build_tree(tokens, np.arange(0, len(tokens) + 1, 2))
    stratum, nodes = top_subtrees(tree)
    figures = {name: [[], [], []] for name in traces}  # relative errors, of 1 % alone, held
    for trial in range(options.trials):
        name_of = rng.permutation(np.resize(list(traces), _GROUPS))
        length = np.zeros(len(group), np.int32)
        for number, name in enumerate(name_of):
            mine = np.flatnonzero(group == number)
            length[mine] = rng.choice(traces[name], len(mine))
        sample = sampled(np.arange(len(group), dtype=np.int32), stratum, trial)
        observed = Observed(tree.leaf_node[sample], length[sample], np.zeros(0, np.int32))
        means = stratum_means(tree, observed)
        plain = rng.permutation(len(group))[: len(group) // 100]
        for number, found in enumerate(means):
            mine = stratum == number
            of_group = length[mine]
            n = int(mine[sample].sum())
            truth, cv = of_group.mean(), of_group.std() / of_group.mean()
            unit = 0.8 * cv / np.sqrt(n)
            errors, plain_errors, held = figures[name_of[group[mine][0]]]
            errors.append(abs(found.mean - truth) / truth / unit)
            held.append(found.low <= truth <= found.high)
            few = length[plain[mine[plain]]]
            guess = few.mean() if len(few) else length[plain].mean()
            plain_errors.append(abs(guess - truth) / truth / unit)
    print(f"{len(group):,} requests, {len(nodes)} top subtrees, {options.trials} trials")
    print(f"{'trace':12} {'groups':>8} {'error':>7} {'held':>7} {'plain 1 %':>10}")
    rows = []
    pooled = [[x for f in figures.values() for x in f[i]] for i in range(3)]
    for name, (errors, plain_errors, held) in {**figures, "all": pooled}.items():
        row = (len(errors), np.mean(errors), np.mean(held), np.mean(plain_errors))
        print(f"{name:12} {row[0]:8,} {row[1]:7.3f} {row[2]:7.1%} {row[3]:10.3f}")
        rows.append({"trace": name, "error": row[1], "held": row[2], "plain": row[3]})
    print(json.dumps(rows))


def _lengths(path: Path) -> np.ndarray:
    table = pq.read_table(path)
    name = next(name for name in table.column_names if "out" in name.lower())
    values = table[name].to_numpy()
    return values[values > 0]


if __name__ == "__main__":
    main()
