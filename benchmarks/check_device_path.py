"""Do jobs through the GPU path give the CPU engine's tokens? In float32, without a GPU.

    python benchmarks/check_device_path.py [PROMPTS ...] [--model M] [--rows 60] [--policies a,b]

Takes the first rows, answers them on the CPU once, then for each policy through the GPU path: all
shared prefixes in levels (cascade), prefill and decodes in one launch (POD). Needs no GPU, and is
slow: the stand-in is plain torch. Exit code 1 if any row differs.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from peers.job import demo_model, demo_prompts, read_prompts

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from tiny_devices import OnStandIn
from tiny_jobs import execute, plan_files
from tiny_launches import counting

POLICIES = "blend,dfs,random,arrival,blendserve"
_ROW = "{:12} {:>6} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8}"


def answers(outputs: Path) -> list[list[int] | None]:
    found: list[list[int] | None] = pq.read_table(outputs)["output_token_ids"].to_pylist()
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("prompts", nargs="*", help="Parquet or JSONL; default: sample_data")
    parser.add_argument("--model", help="default: the demo model")
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--max-tokens-cap", type=int, help="shorter answers, for a quick run")
    parser.add_argument("--ignore-eos", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = parse()
    model = options.model or demo_model()
    table = read_prompts(options.prompts or demo_prompts()).slice(0, options.rows)
    if options.max_tokens_cap is not None:
        column = table.column_names.index("max_tokens")
        capped = pc.min_element_wise(table["max_tokens"], options.max_tokens_cap)
        table = table.set_column(column, "max_tokens", capped)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        pq.write_table(table, work / "prompts.parquet")
        policies = options.policies.split(",")
        plans = [
            plan_files(work / f"{policy}.json", [work / "prompts.parquet"], model, policy=policy)[0]
            for policy in policies
        ]
        cpu = execute(plans[0], work / "cpu", device="cpu", ignore_eos=options.ignore_eos)
        expected = answers(cpu.outputs)
        tokens = sum(len(row or ()) for row in expected)
        print(f"{len(expected)} rows, {tokens} output tokens on the CPU", flush=True)
        print(_ROW.format("policy", "equal", "differ", "cascade", "pod", "decode", "prefill", "s"))
        for policy, plan in zip(policies, plans, strict=True):
            begin, (library, launches) = time.monotonic(), counting()
            run_dir = work / policy
            result = execute(
                plan, run_dir, OnStandIn(library), pod=True, ignore_eos=options.ignore_eos
            )
            found = answers(result.outputs)
            wrong = [
                i for i, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]
            ]
            good &= not wrong
            kinds = [launches[kind] for kind in ("cascade", "pod", "decode", "prefill")]
            seconds = round(time.monotonic() - begin)
            line = _ROW.format(policy, len(found) - len(wrong), len(wrong), *kinds, seconds)
            print(line, f"rows {wrong}" if wrong else "", flush=True)
    print("all equal" if good else "WRONG")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
