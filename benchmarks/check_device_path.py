"""Do jobs through the GPU path give the CPU engine's tokens? In float32, without a GPU.

    python benchmarks/check_device_path.py [PROMPTS ...] [--model M] [--rows 60] [--policies a,b]

Answers all rows, or the first ones, on the CPU once, then for each policy through the GPU path: all
shared prefixes in levels (cascade), prefill and decodes in one launch (POD). Needs no GPU. Exit
code 1 if any row differs.

With `--work FOLDER`, plans and runs are kept: the same command goes on where it was ended. Delete
the folder when anything else changes.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from peers.job import demo_model, demo_prompts, read_prompts

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from tiny_devices import OnStandIn
from tiny_jobs import execute, plan_files
from tiny_launches import counting

POLICIES = "blend,blendserve,dfs,dfs-sets,arrival,random"
_KINDS = ("cascade", "pod", "decode", "prefill")
_ROW = "{:12} {:>6} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8}"

Answers = list[list[int] | None]


def answers(outputs: Path) -> Answers:
    found: Answers = pq.read_table(outputs)["output_token_ids"].to_pylist()
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("prompts", nargs="*", help="Parquet or JSONL; default: sample_data")
    parser.add_argument("--model", help="default: the demo model")
    parser.add_argument("--rows", type=int, help="the first ones; default: all")
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--max-tokens-cap", type=int, help="shorter answers, for a quick run")
    parser.add_argument("--ignore-eos", action="store_true")
    parser.add_argument("--work", type=Path, help="folder for plans and runs, to go on with")
    return parser.parse_args()


def first_difference(found: Sequence[int] | None, expected: Sequence[int] | None) -> int:
    """The place of the first token that is another one, or that one of them lacks."""
    pairs = zip(found or (), expected or (), strict=False)
    same = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    return min(len(found or ()), len(expected or ())) if same is None else same


def write_job(options: argparse.Namespace, path: Path) -> None:
    table = read_prompts(options.prompts or demo_prompts()).slice(0, options.rows)
    if options.max_tokens_cap is not None:
        column = table.column_names.index("max_tokens")
        capped = pc.min_element_wise(table["max_tokens"], options.max_tokens_cap)
        table = table.set_column(column, "max_tokens", capped)
    pq.write_table(table, path)


def check(options: argparse.Namespace, work: Path) -> bool:
    """Whether all policies gave the CPU engine's tokens."""
    job, good = work / "prompts.parquet", True
    write_job(options, job)
    model, policies = options.model or demo_model(), options.policies.split(",")
    plans = [
        plan_files(work / f"{policy}.json", [job], model, policy=policy)[0] for policy in policies
    ]

    def timed(plan: Path, name: str, *load: Any, **settings: Any) -> tuple[Answers, int]:
        begin = time.process_time()
        result = execute(plan, work / name, *load, ignore_eos=options.ignore_eos, **settings)
        return answers(result.outputs), round(time.process_time() - begin)

    expected, seconds = timed(plans[0], "cpu", device="cpu")
    tokens = sum(len(row or ()) for row in expected)
    print(f"{len(expected)} rows, {tokens} output tokens on the CPU, {seconds} s of CPU time")
    print(_ROW.format("policy", "equal", "differ", *_KINDS, "CPU s"), flush=True)
    for policy, plan in zip(policies, plans, strict=True):
        library, launches = counting()
        found, seconds = timed(plan, policy, OnStandIn(library), pod=True)
        wrong = [row for row, ids in enumerate(expected) if found[row] != ids]
        counts = [launches[kind] for kind in _KINDS]
        line = _ROW.format(policy, len(found) - len(wrong), len(wrong), *counts, seconds)
        print(line, flush=True)
        for row in wrong:
            print(f"  row {row} differs from token {first_difference(found[row], expected[row])}")
        good &= not wrong
    return good


def main() -> None:
    options = parse()
    if options.work is None:
        with tempfile.TemporaryDirectory() as folder:
            good = check(options, Path(folder))
    else:
        options.work.mkdir(parents=True, exist_ok=True)
        good = check(options, options.work)
    print("all equal" if good else "WRONG")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
