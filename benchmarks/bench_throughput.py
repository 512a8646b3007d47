"""Total throughput of blendrun, of transformers in static batches, and of vLLM, on one job.

    python benchmarks/bench_throughput.py PROMPTS... [--model M] [--vllm-python PATH] [--limit N]

Input and output tokens over seconds of generation (loading apart), in bfloat16, with
end-of-sequence ignored, so that every engine makes the tokens that each row asks for. How each
peer is run stands in benchmarks/peers/. Prints a table, then one JSON line.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from peers.cli import Cli, unique_prompt_tokens
from peers.contenders import PeerError, Timing, run_transformers, run_vllm
from peers.job import TokenJob, demo_model, demo_prompts

from blendrun.data.model_files import resolve_model

BLENDRUN, TRANSFORMERS, VLLM = "blendrun", "transformers", "vllm"
_ROW = "{:14} {:>12} {:>12} {:>12} {:>16} {:>9}  {}"


@dataclass(frozen=True, slots=True)
class Score:
    """Throughput of one engine: median of its repeats, in tokens/s, and their spread."""

    total_tokens_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    lowest: float
    highest: float
    timing: Timing

    @classmethod
    def of(cls, job: TokenJob, timing: Timing) -> "Score":
        """Raises PeerError if the engine did not make all the tokens."""
        if timing.output_tokens != job.num_output_tokens:
            raise PeerError(
                f"made {timing.output_tokens} output tokens, not {job.num_output_tokens}"
            )
        total = job.num_prompt_tokens + job.num_output_tokens
        rates = [total / seconds for seconds in timing.generate_s]
        median = statistics.median(rates)
        return cls(
            median,
            median * job.num_prompt_tokens / total,
            median * job.num_output_tokens / total,
            min(rates),
            max(rates),
            timing,
        )


def run_blendrun(cli: Cli, plan: Path, work: Path, repeats: int, flags: list[str]) -> Timing:
    """The command line, each repeat in a new run folder; seconds are those of its report."""
    reports = [cli.execute(plan, work / f"run-{i}", *flags) for i in range(repeats)]
    last = reports[-1]
    unique, computed = unique_prompt_tokens(plan), last["computed_prompt_tokens"]
    note = f"computed {computed:,} prompt tokens, {computed / unique - 1:.2%} above the unique ones"
    if last["error_rows"]:
        note += f"; {last['error_rows']} error rows"
    return Timing(
        [report["generate_s"] for report in reports], last["load_s"], last["output_tokens"], note
    )


def contenders(
    options: argparse.Namespace, cli: Cli, plan: Path, job: Path, work: Path, folder: Path
) -> dict[str, Callable[[], Timing]]:
    """What to run, by name, in order."""
    flags = [word for flag in options.execute_flag for word in flag.split()]
    repeats, threads = options.repeats, options.threads
    chosen: dict[str, Callable[[], Timing]] = {}
    if not options.skip_blendrun:
        chosen[BLENDRUN] = lambda: run_blendrun(cli, plan, work, repeats, flags)
    if not options.skip_transformers:
        chosen[TRANSFORMERS] = lambda: run_transformers(
            job, folder, options.batch_sizes, options.sample_rows, repeats, threads
        )
    if options.vllm_python is not None and not options.skip_vllm:
        chosen[VLLM] = lambda: run_vllm(
            options.vllm_python, job, folder, options.vllm_num_batched_tokens, repeats, threads,
            options.vllm_kv_gib,
        )  # fmt: skip
    return chosen


def measure(job: TokenJob, chosen: dict[str, Callable[[], Timing]]) -> dict[str, Score]:
    """Run one after the other and print a line for each; a peer that cannot run is left out."""
    print(_ROW.format("engine", "total tok/s", "input", "output", "lowest-highest", "load s", ""))
    scores = {}
    for name, run in chosen.items():
        try:
            score = Score.of(job, run())
        except PeerError as error:
            print(f"{name:14} skipped: {error}", flush=True)
            continue
        scores[name] = score
        spread = f"{score.lowest:,.0f}-{score.highest:,.0f}"
        figures = (score.total_tokens_per_s, score.input_tokens_per_s, score.output_tokens_per_s)
        print(
            _ROW.format(
                name, *(f"{figure:,.1f}" for figure in figures), spread,
                f"{score.timing.load_s:.1f}", score.timing.note,
            ),
            flush=True,
        )  # fmt: skip
    return scores


def ratios(scores: dict[str, Score]) -> dict[str, float]:
    """How many times a peer's throughput blendrun has, by peer."""
    own = scores.get(BLENDRUN)
    if own is None:
        return {}
    return {
        name: own.total_tokens_per_s / score.total_tokens_per_s
        for name, score in scores.items()
        if name != BLENDRUN
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("prompts", nargs="*", help="Parquet or JSONL; default: sample_data")
    add("--model", help="default: the demo model")
    add("--limit", type=int, help="only the first N rows")
    add("--repeats", type=int, default=1)
    add("--threads", type=int, help="default: each engine's own choice")
    add("--policy", default="blend", help="of blendrun's plan")
    add("--execute-flag", action="append", default=[], help="for execute: '--chunk-size 1024'")
    add("--batch-sizes", default="8,16,32", help="that transformers tries on a sample")
    add("--sample-rows", type=int, default=64, help="size of that sample")
    add("--vllm-python", type=Path, help="Python of an environment that has vLLM")
    add("--vllm-num-batched-tokens", type=int)
    add("--vllm-kv-gib", type=int, default=4)
    for name in (BLENDRUN, TRANSFORMERS, VLLM):
        add(f"--skip-{name}", action="store_true")
    return parser.parse_args()


def bench(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """All measurements, ready for JSON."""
    files, cli = resolve_model(options.model or demo_model()), Cli(options.threads)
    prompts = options.prompts or demo_prompts()
    flags = ["--ignore-eos", "--policy", options.policy]
    flags += ["--limit", str(options.limit)] if options.limit else []
    plan, job_path = work / "plan.json", work / "job.json"
    cli.plan(prompts, files.spec, plan, *flags)
    job = TokenJob.of_plan(plan)
    job.save(job_path)
    print(f"{len(job.rows)} rows, {job.num_prompt_tokens:,} prompt and {job.num_output_tokens:,} "
          f"output tokens, {len(os.sched_getaffinity(0))} cores", flush=True)  # fmt: skip
    if options.vllm_python is None and not options.skip_vllm:
        print("vllm           skipped: no --vllm-python with an environment that has it")
    scores = measure(job, contenders(options, cli, plan, job_path, work, files.folder))
    for name, ratio in ratios(scores).items():
        print(f"blendrun / {name}: {ratio:.2f}")
    return {
        "prompts": [Path(path).name for path in prompts],
        "rows": len(job.rows),
        "prompt_tokens": job.num_prompt_tokens,
        "output_tokens": job.num_output_tokens,
        "engines": {name: asdict(score) for name, score in scores.items()},
        "ratios": ratios(scores),
    }


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(bench(options, Path(folder)), allow_nan=False))


if __name__ == "__main__":
    main()
