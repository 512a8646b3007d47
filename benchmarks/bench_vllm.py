"""vLLM driven by a plan, beside vLLM by itself: the same engine, in turn, in one process.

    PYTHON benchmarks/bench_vllm.py [--job evalmix] [--rows N] [--kv-gib 4] [--repeats 2]

PYTHON has vLLM and blendrun (`make test-vllm` leaves .venv-vllm). Runs, each with nothing cached:

    planned      through blendrun, in the order of the plan
    arrival      through blendrun, in the order of the file
    direct       `LLM.generate`, in the order in which `planned` let requests in
    direct-file  `LLM.generate`, in the order of the file

All answer greedily and ignore end-of-sequence. Prints a table, then one JSON line. "Equal" is the
part of the answers that are those of the first run.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from peers.cli import Cli
from peers.job import demo_model

from blendrun.data.answer_keys import read_keys
from blendrun.data.results import RankJournal, read_answers
from blendrun.engine.assembly import RankShare
from blendrun.engine.attempt import WindowWork
from blendrun.engine.execute import execute_plan
from blendrun.engine.loaded_model import find_model
from blendrun.engine.policy import with_policy
from blendrun.engine.requests import EngineRequests
from blendrun.engine.settings import ExecuteSettings
from blendrun.engine.twins import find_twins
from blendrun.engine.vllm import Vllm, engine_arguments, numba_hidden, prepare_environment
from blendrun.engine.vllm_assembly import JobSize, LoadedVllm, assemble_vllm, vllm_options
from blendrun.engine.vllm_params import ParamsFactory
from blendrun.schedule.plan_file import read_header, read_plan
from blendrun.units import GIB

_DATA = Path(__file__).parents[2] / "shared/data"
_QUIET = SimpleNamespace(begin=lambda *_: None, note=lambda _: None, step=lambda _: None)


@dataclass(frozen=True, slots=True)
class Run:
    generate_s: float
    answers: dict[int, list[int]]  # by row
    cached_tokens: int
    preemptions: int


class Alone:
    """A `Feed` without other ranks."""

    def begins(self, requests: Any) -> None:
        pass

    def saved(self, requests: Any) -> None:
        pass

    def goes_on(self, _loop: Any, is_dry: bool) -> bool:
        return not is_dry


class Rank:
    """`Ranks` of `engine.attempt`: the only one, in this process; times the run loop."""

    def __init__(self, model: LoadedVllm) -> None:
        self._model = model
        self.generate_s = 0.0

    def answer(self, work: WindowWork) -> float:
        keys = read_keys(work.journal.run_dir)
        everyone = EngineRequests.of(read_plan(work.plan_path), work.settings.ignore_eos, keys)
        plan, everyone = with_policy(read_header(work.plan_path)[0], everyone, work.settings.policy)
        journal = RankJournal(work.journal.run_dir, work.journal.reserve())
        running = find_twins(everyone, work.pending).running
        made = assemble_vllm(
            plan, work.settings, self._model, everyone, work.pending,
            work.journal.read_unfinished(), journal, work.attempt, time.monotonic(),
            work.deadline, RankShare(0, 1, running, Alone()),
        )  # fmt: skip
        begin = time.perf_counter()
        made.loop.run()
        self.generate_s = time.perf_counter() - begin
        return time.monotonic()

    def close(self) -> None:
        pass


class Bench:
    """A planned job, and one vLLM that has loaded its model."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        import vllm

        self._work, self._vllm = work, vllm
        job = Path(options.job) if Path(options.job).suffix else _DATA / f"{options.job}.parquet"
        limit = [] if options.rows is None else ["--limit", str(options.rows)]
        model = options.model or demo_model()
        self._plan = Cli().plan(
            [str(job)], model, work / "plan.json", "--ignore-eos", "--temperature", "0", *limit
        )
        self._settings = ExecuteSettings(
            engine="vllm", chunk_size=options.chunk_size, max_seqs=options.max_seqs,
            kv_memory=options.kv_gib * GIB, dtype=options.dtype, tp=1,
        )  # fmt: skip
        plan, _ = read_header(self._plan)
        files = find_model(plan, self._settings)
        chosen = vllm_options(files, plan, self._settings, JobSize.of(self._plan, plan), 1)
        with numba_hidden():
            self._llm = vllm.LLM(**engine_arguments(files.folder, chosen))
        self._engine = Vllm(self._llm.llm_engine, vllm.__version__)
        self._model = LoadedVllm.of(self._engine, files, plan)
        self._requests = EngineRequests.of(read_plan(self._plan), True)
        self._eos = files.eos_token_ids
        self.order: list[int] = []  # in which the last run through blendrun let requests in
        self.planned: list[int] = []  # likewise, of the last one with the plan's policy
        self._count = 0
        self._warm_up()

    def driven(self, policy: str | None) -> Run:
        """Through blendrun."""
        self._reset()
        before, add = self._preemptions(), self._engine.add
        order: list[int] = []

        def noting(request: int, token_ids: list[int], params: Any) -> str | None:
            order.append(request)
            return add(request, token_ids, params)

        self._engine.add = noting  # type: ignore[method-assign]
        self._count += 1
        run_dir, rank = self._work / f"run-{self._count}", Rank(self._model)
        wanted = replace(self._settings, policy=policy, ignore_eos=True)
        events: Any = _QUIET
        execute_plan(self._plan, run_dir, wanted, events, ranks=rank)
        self._engine.add = add  # type: ignore[method-assign]
        self.order = order
        if policy is None:
            self.planned = order
        table = read_answers(run_dir, ["output_token_ids", "num_cached_tokens"])
        answers = dict(
            zip(table["row"].to_pylist(), table["output_token_ids"].to_pylist(), strict=True)
        )
        cached = sum(table["num_cached_tokens"].to_pylist())
        return Run(rank.generate_s, answers, cached, self._preemptions() - before)

    def direct(self, order: list[int]) -> Run:
        """`LLM.generate` with the same parameters."""
        self._reset()
        before, requests = self._preemptions(), self._requests
        factory = ParamsFactory(requests, self._eos)
        prompts = [{"prompt_token_ids": requests.prompt(r).tolist()} for r in order]
        params = [factory.make(request, 0) for request in order]
        for one in params:
            one.output_kind = self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY
        begin = time.perf_counter()
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        generate_s = time.perf_counter() - begin
        answers = {
            int(requests.row[request]): list(output.outputs[0].token_ids)
            for request, output in zip(order, outputs, strict=True)
        }
        cached = sum(output.num_cached_tokens or 0 for output in outputs)
        return Run(generate_s, answers, cached, self._preemptions() - before)

    def in_file_order(self) -> list[int]:
        return sorted(self.order, key=lambda request: int(self._requests.row[request]))

    def _warm_up(self) -> None:
        params = self._vllm.SamplingParams(max_tokens=4, temperature=0, detokenize=False)
        self._llm.generate([{"prompt_token_ids": [1, 2, 3, 4]}], params, use_tqdm=False)
        self.driven(None)  # also compiles the batcher

    def _reset(self) -> None:
        if not self._llm.reset_prefix_cache():
            raise SystemExit("the prefix cache could not be emptied")

    def _preemptions(self) -> int:
        return 0 if self._engine.scheduler is None else int(self._engine.scheduler.preemptions)


def table(found: dict[str, list[Run]]) -> str:
    first = next(iter(found.values()))[0]
    lines = ["| run | seconds | against the first | cached prompt tokens | preemptions | equal |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    median = statistics.median([run.generate_s for run in next(iter(found.values()))])
    for name, runs in found.items():
        seconds = statistics.median([run.generate_s for run in runs])
        shared = [row for row in runs[0].answers if row in first.answers]
        same = sum(runs[0].answers[row] == first.answers[row] for row in shared)
        all_s = ", ".join(f"{run.generate_s:.1f}" for run in runs)
        lines.append(
            f"| {name} | {all_s} | {seconds / median:.3f} | {runs[0].cached_tokens:,} | "
            f"{runs[0].preemptions:,} | {same / max(len(shared), 1):.1%} |"
        )
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--job", default="evalmix", help="a prompt file, or a name in ../shared/data")
    add("--model", help="default: the demo model")
    add("--rows", type=int, help="only the first N rows")
    add("--runs", default="planned,arrival,direct,direct-file", help="planned first")
    add("--repeats", type=int, default=2)
    add("--kv-gib", type=int, default=4)
    add("--chunk-size", type=int, default=2048)
    add("--max-seqs", type=int, default=256)
    add("--dtype", default="bfloat16")
    return parser.parse_args()


def main() -> None:
    options = parse()
    prepare_environment(1, os.sched_getaffinity(0), None)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        kinds: dict[str, Callable[[], Run]] = {
            "planned": lambda: bench.driven(None),
            "arrival": lambda: bench.driven("arrival"),
            "direct": lambda: bench.direct(bench.planned),
            "direct-file": lambda: bench.direct(bench.in_file_order()),
        }
        found: dict[str, list[Run]] = {name: [] for name in options.runs.split(",")}
        for _ in range(options.repeats):
            for name, runs in found.items():
                runs.append(kinds[name]())
                print(f"{name}: {runs[-1].generate_s:.1f} s", file=sys.stderr, flush=True)
    print(table(found))
    line = {
        name: [(run.generate_s, run.cached_tokens, run.preemptions) for run in runs]
        for name, runs in found.items()
    }
    print(json.dumps({"cores": len(os.sched_getaffinity(0)), "runs": line}))


if __name__ == "__main__":
    main()
