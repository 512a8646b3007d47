"""Simulates the BlendServe paper's comparison, and what its figures depend on.

    make bench-paper                 # writes benchmarks/paper/
    python benchmarks/bench_paper.py --full --traces FOLDER

Needs the length traces azure_code, azure_conv and sharegpt (Parquet, input_tokens and
output_tokens). All on the reference machine of `configs/hardware/paper-a100.toml` with the paper's
cost model, where nothing else is said. Nothing here runs on a GPU.
"""

import argparse
import dataclasses
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.engine import simulation as log
from blendrun.engine.simulated_job import Outcome, SimulatedJob, SimulateOptions
from blendrun.launch.simulated_ranks import simulate_job
from blendrun.report.palette import COLOURS
from blendrun.workloads.synthesis import PAPER_TRACES, long_output_workload, paper_workload
from blendrun.workloads.workload import Workload

PRIOR = 256
GRID = [(round(0.8 + 0.05 * i, 2), round(0.05 + 0.1 * j, 2)) for i in range(13) for j in range(5)]
KNOWN, LEARNED = "exact", "survival"


@dataclass(frozen=True)
class Case:
    """One simulated run; `workload` names what `make` makes."""

    workload: tuple[Any, ...]
    policy: str = "dfs"
    lengths: str = KNOWN
    budget: str = "auto"
    overlaps: bool = True
    model: str = "llama-3.1-8b"
    tp: int = 1
    dp: int = 1
    hardware: tuple[tuple[str, Any], ...] = ()  # changes of the reference machine
    prices: float = 1.0  # compute seconds that the batcher believes, over the truth
    seed: int = 0
    series: bool = False


@dataclass(frozen=True)
class Figures:
    """What a case gave."""

    seconds: float
    practical: float
    ideal: float
    tokens_per_s: float
    sharing_kept: float
    running: float
    pages: float
    preemptions: int
    recomputed: int
    steps: int
    losses: dict[str, float]
    series: np.ndarray | None = None


class Runner:
    """Makes workloads once and simulates cases, in as many processes as there are cores."""

    def __init__(self, traces: Path, processes: int) -> None:
        self.traces, self.processes = traces, processes

    def run(self, cases: Sequence[Case]) -> list[Figures]:
        jobs = [(case, self.traces) for case in cases]
        if self.processes == 1:
            return [simulate_case(job) for job in jobs]
        with multiprocessing.get_context("spawn").Pool(self.processes) as pool:
            return pool.map(simulate_case, jobs, chunksize=1)


_made: dict[tuple[Any, ...], SimulatedJob] = {}


def simulate_case(job: tuple[Case, Path]) -> Figures:
    case, traces = job
    cost = machine(case)
    key = (case.workload, case.model, case.seed)
    if key not in _made:
        _made.clear()
        _made[key] = as_job(make(case, traces, cost))
    options = SimulateOptions(
        policy=case.policy,
        lengths=case.lengths,
        budget=case.budget,
        overlaps=case.overlaps,
        dp=case.dp,
        seed=case.seed,
        price_factor=case.prices,
    )
    return figures(simulate_job(_made[key], cost, options), case.series)


def machine(case: Case) -> CostModel:
    hardware = HardwareProfile.load("paper-a100")
    changes = dict(case.hardware)
    if changes.pop("rough", False):
        hardware = HardwareProfile.load("paper-a100-rough")
    shape = ModelShape.load(case.model)
    if case.model != "llama-3.1-8b":
        # the reference machine states KV memory for the 8B model
        hardware = dataclasses.replace(hardware, kv_memory_bytes=None, memory_frac=0.95)
    return CostModel(shape, dataclasses.replace(hardware, **changes), case.tp, "paper")


def make(case: Case, traces: Path, cost: CostModel) -> Workload:
    kind, *rest = case.workload
    if kind == "mix":
        density, sharing, n = rest
        return paper_workload(density, sharing, n, case.seed, traces, cost)
    trace, density, n = rest
    return long_output_workload(traces / f"{trace}.parquet", density, n, case.seed, cost)


def as_job(workload: Workload) -> SimulatedJob:
    n = workload.num_requests
    return SimulatedJob(
        workload.tree(),
        workload.output_len,
        workload.max_tokens,
        np.minimum(workload.max_tokens, PRIOR).astype(np.int32),
        np.zeros(n, bool),
    )


def figures(outcome: Outcome, series: bool) -> Figures:
    return Figures(
        outcome.seconds,
        outcome.practical_frac,
        outcome.ideal_frac,
        outcome.tokens_per_s,
        outcome.sharing_kept,
        outcome.mean_running,
        outcome.mean_page_use_frac,
        outcome.preemptions,
        outcome.recomputed_tokens,
        sum(len(rank.steps) for rank in outcome.ranks),
        losses(outcome),
        resources(outcome) if series else None,
    )


def losses(outcome: Outcome) -> dict[str, float]:
    """Where time beyond the practical optimum goes, as shares of the whole; they add up.

    A step's loss against the bound is its time less a g + b k, with (a, b) the gradient of the
    overlap norm at the job's totals.
    """
    steps = np.concatenate([rank.steps for rank in outcome.ranks])
    ranks, best = len(outcome.ranks), outcome.optimum
    q = outcome.cost.hardware.overlap_exponent if outcome.options.overlaps else 1.0
    total = float(steps[:, log.SECONDS].sum())
    g, k = steps[:, log.COMPUTE], steps[:, log.MEMORY]
    if np.isinf(q):
        norm, a, b = max(g.sum(), k.sum()), float(g.sum() >= k.sum()), float(g.sum() < k.sum())
    else:
        norm = (g.sum() ** q + k.sum() ** q) ** (1 / q)
        a, b = (g.sum() / norm) ** (q - 1), (k.sum() / norm) ** (q - 1)
    off = steps[:, log.SECONDS] - a * g - b * k
    waits = steps[:, log.WAITING] > 0
    return {
        "more work than needed": (norm - best.practical_s) / total,
        "off the ratio, while requests wait": float(off[waits].sum()) / total,
        "off the ratio, at the end": float(off[~waits].sum()) / total,
        "ranks that wait": 1 - total / (outcome.seconds * ranks),
    }


def resources(outcome: Outcome, spans: int = 200) -> np.ndarray:
    """[spans, 3]: end in seconds, share of time that compute and that memory is busy."""
    steps = outcome.ranks[0].steps
    ends = np.cumsum(steps[:, log.SECONDS])
    edges = np.linspace(0, ends[-1], spans + 1)

    def rate(column: int) -> np.ndarray:
        total = np.concatenate([[0.0], np.cumsum(steps[:, column])])
        return np.diff(np.interp(edges, np.concatenate([[0.0], ends]), total)) / np.diff(edges)

    return np.stack([edges[1:], rate(log.COMPUTE), rate(log.MEMORY)], axis=1)


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(head), " | ".join(["---"] * len(head)), *(" | ".join(r) for r in rows)]
    return "\n".join(f"| {line} |" for line in lines)


# --- the sections of the page ---

ENGINES = (
    ("sequential", "arrival order", Case((), "arrival", overlaps=False)),
    ("sequential", "depth-first", Case((), "dfs", overlaps=False)),
    ("overlapped", "random order (NanoFlow-Balance)", Case((), "random")),
    ("overlapped", "depth-first, sets one by one", Case((), "dfs-sets")),
    ("overlapped", "depth-first (NanoFlow-DFS)", Case((), "dfs")),
    ("overlapped", "depth-first, ratio budget", Case((), "dfs", budget="ratio")),
    ("overlapped", "two-ended scan, 1 % sample", Case((), "blendserve", "static")),
    ("overlapped", "two-ended scan, known lengths", Case((), "blendserve")),
    ("overlapped", "blend, 1 % sample", Case((), "blend", "static")),
    ("overlapped", "blend, learned lengths", Case((), "blend", LEARNED)),
    ("overlapped", "blend, known lengths", Case((), "blend")),
)
PAPER = {
    "depth-first (NanoFlow-DFS)": "71.7 %",
    "two-ended scan, 1 % sample": "86.55 %",
}


def four_traces(runner: Runner, folder: Path, n: int) -> str:
    workloads = [("mix", d, s, n) for d, s in PAPER_TRACES]
    cases = [
        dataclasses.replace(case, workload=w, series=w == workloads[0])
        for w in workloads
        for _, _, case in ENGINES
    ]
    found = runner.run(cases)
    by_trace = [found[i : i + len(ENGINES)] for i in range(0, len(found), len(ENGINES))]
    rows, where = [], []
    for number, (engine, name, _) in enumerate(ENGINES):
        mine = [trace[number] for trace in by_trace]
        rows.append(
            [engine, name]
            + [f"{f.practical:.3f}" for f in mine]
            + [
                f"**{mean([f.practical for f in mine]):.3f}**",
                f"{mean([f.ideal for f in mine]):.3f}",
                f"{mean([f.tokens_per_s for f in mine]):,.0f}",
                f"{mean([f.sharing_kept for f in mine]):.1%}",
                PAPER.get(name, ""),
            ]
        )
        lost = {key: mean([f.losses[key] for f in mine]) for key in mine[0].losses}
        where.append([name, *(f"{value:.1%}" for value in lost.values())])
    plot_resources(by_trace[0], folder / "resources.svg")
    head = ["engine", "order", "#1", "#2", "#3", "#4", "mean", "of ideal", "tokens/s",
            "sharing kept", "paper"]  # fmt: skip
    return "\n\n".join(
        [
            f"## The four traces, {n:,} requests",
            "Share of the practical optimum, by trace: density and sharing 1.4/35 %, 0.9/35 %, "
            "1.4/5 %, 0.9/5 %. Llama-3-8B, one A100.",
            table(head, rows),
            "Where the rest of the time goes, mean of the traces (shares of the run):",
            table(["order", *by_trace[0][0].losses], where),
            "Compute and memory over the run of trace #1 (the paper's figure 10):",
            "![resources over time](resources.svg)",
        ]
    )


def plot_resources(found: Sequence[Figures], path: Path) -> None:
    chosen = [number for number, (engine, _, case) in enumerate(ENGINES)
              if engine == "overlapped" and case.budget == "auto"
              and (case.policy in ("random", "dfs") or case.lengths == LEARNED)]  # fmt: skip
    figure = Figure(figsize=(9, 2.2 * len(chosen)), layout="constrained")
    axes = figure.subplots(len(chosen), 1, sharex=True)
    for each, number in zip(axes, chosen, strict=True):
        series = found[number].series
        for column, label in ((1, "compute"), (2, "memory bandwidth")):
            each.plot(series[:, 0], series[:, column], color=COLOURS[column - 1], label=label)
        each.set_ylim(0, 1.05)
        each.set_ylabel("share of time busy")
        each.set_title(f"{ENGINES[number][1]}: {found[number].practical:.0%} of the optimum")
    axes[0].legend(loc="lower right")
    axes[-1].set_xlabel("seconds")
    figure.savefig(path)


def grid(runner: Runner, folder: Path, n: int) -> str:
    kinds = (Case((), "dfs"), Case((), "blendserve"), Case((), "blend", LEARNED), Case((), "blend"))
    cases = [
        dataclasses.replace(kind, workload=("mix", d, s, n)) for d, s in GRID for kind in kinds
    ]
    found = runner.run(cases)
    gains = np.array(
        [
            [found[i].seconds / found[i + j].seconds - 1 for j in range(1, len(kinds))]
            for i in range(0, len(found), len(kinds))
        ]
    )
    kept = min(found[i + 2].sharing_kept for i in range(0, len(found), len(kinds)))
    names = ["two-ended scan, known lengths", "blend, learned lengths", "blend, known lengths"]
    paper = ["+22.53 %, +14 % … +34 %", "", ""]
    rows = [
        [name, f"{column.mean():+.1%}", f"{column.min():+.1%}", f"{column.max():+.1%}", said]
        for name, column, said in zip(names, gains.T, paper, strict=True)
    ]
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    picture = gains[:, 1].reshape(13, 5).T
    shown = axes.imshow(100 * picture, origin="lower", aspect="auto", cmap="cividis")
    axes.set_xticks(range(13), [f"{0.8 + 0.05 * i:.2f}" for i in range(13)])
    axes.set_yticks(range(5), [f"{5 + 10 * j} %" for j in range(5)])
    axes.set_xlabel("density")
    axes.set_ylabel("sharing")
    axes.set_title("gain of blend with learned lengths over NanoFlow-DFS, %")
    figure.colorbar(shown)
    figure.savefig(folder / "grid.svg")
    return "\n\n".join(
        [
            f"## 65 workloads, {n:,} requests each",
            "Throughput over depth-first order on the overlapped engine, density 0.80 … 1.40 by "
            "sharing 5 … 45 %.",
            table(["order", "mean", "worst", "best", "paper"], rows),
            f"Least sharing kept by blend with learned lengths: {kept:.1%}.",
            "![gains on the grid](grid.svg)",
        ]
    )


def chats(runner: Runner, _folder: Path, n: int) -> str:
    kinds = (Case((), "dfs"), Case((), "blendserve", "static"), Case((), "blend", LEARNED),
             Case((), "blend"))  # fmt: skip
    traces = ("azure_conv", "azure_code", "sharegpt")
    rows = []
    for trace in traces:
        workloads = [("long", trace, density, n) for density in (1.4, 0.9)]
        found = runner.run([dataclasses.replace(k, workload=w) for w in workloads for k in kinds])
        cells = [f"{mean([found[i].practical, found[i + 4].practical]):.3f}" for i in range(4)]
        gain = mean([found[0].seconds / found[2].seconds, found[4].seconds / found[6].seconds]) - 1
        paper = {"sharegpt": "up to +17 %"}.get(trace, "up to +31 %")
        rows.append([trace, *cells, f"{gain:+.1%}", paper])
    head = ["lengths", "depth-first", "two-ended, 1 % sample", "blend, learned", "blend, known",
            "learned over depth-first", "paper's gain"]  # fmt: skip
    return "\n\n".join(
        [
            f"## Mixes of one trace and long outputs, {n:,} requests",
            "Share of the practical optimum, mean of densities 1.4 and 0.9.",
            table(head, rows),
        ]
    )


MODELS = (("qwen2.5-7b", 1), ("llama-2-7b", 1), ("llama-3.1-70b", 8), ("qwen2.5-72b", 8),
          ("deepseek-llm-67b", 8))  # fmt: skip


def models(runner: Runner, _folder: Path, n: int) -> str:
    kinds = (Case((), "dfs"), Case((), "blendserve"), Case((), "blend", LEARNED))
    rows = []
    for model, tp in MODELS:
        cases = [
            dataclasses.replace(kind, workload=("mix", d, s, n), model=model, tp=tp)
            for d, s in PAPER_TRACES
            for kind in kinds
        ]
        found = runner.run(cases)
        share = [mean([f.practical for f in found[i::3]]) for i in range(3)]
        gain = [
            mean([a.seconds / b.seconds for a, b in zip(found[::3], found[i::3], strict=True)]) - 1
            for i in (1, 2)
        ]
        rows.append([model, str(tp), *(f"{s:.3f}" for s in share), *(f"{g:+.1%}" for g in gain)])
    head = ["model", "TP", "depth-first", "two-ended", "blend, learned", "two-ended gain",
            "blend gain"]  # fmt: skip
    return "\n\n".join(
        [
            f"## Other models, {n:,} requests",
            "Share of the practical optimum and gain over depth-first, mean of the four traces, "
            "each mixed for the model. The paper: 70B +18.6 % and 90.8 % of the optimum; the "
            "others +15.2 % and 89.9 %.",
            table(head, rows),
        ]
    )


def ranks(runner: Runner, _folder: Path, n: int) -> str:
    cases = [
        Case(("mix", d, s, n), "blend", LEARNED, dp=dp)
        for d, s in PAPER_TRACES
        for dp in (1, 2, 4, 8)
    ]
    found = runner.run(cases)
    rows = []
    for i in range(0, 16, 4):
        one = found[i].seconds
        scaling = [f"{one / found[i + j].seconds:.2f}" for j in range(1, 4)]
        rows.append([f"#{i // 4 + 1}", f"{found[i].tokens_per_s:,.0f}", *scaling])
    return "\n\n".join(
        [
            f"## Data parallel, {n:,} requests",
            "Speed of 2, 4 and 8 ranks over one, blend with learned lengths. The paper: 11,080, "
            "8,408, 8,403 and 6,325 tokens/s on one rank, 1.85 … 1.93 on two, 3.78 … 3.88 on "
            "four. Nothing is known of output lengths when the requests are divided, so each rank "
            "gets an even part of every top subtree; ranks hand work over while they run, "
            "running requests too.",
            table(["trace", "tokens/s on one", "two", "four", "eight"], rows),
        ]
    )


CHANGES: tuple[tuple[str, tuple[tuple[str, Any], ...], float], ...] = (
    ("reference", (), 1.0),
    ("overlap exponent 2", (("overlap_exponent", 2.0),), 1.0),
    ("overlap exponent 3", (("overlap_exponent", 3.0),), 1.0),
    ("perfect overlap", (("overlap_exponent", float("inf")),), 1.0),
    ("1 ms per step", (("step_overhead_s", 0.001),), 1.0),
    ("3 ms per step", (("step_overhead_s", 0.003),), 1.0),
    ("tiles of 128 tokens", (("gemm_tile", 128),), 1.0),
    ("tiles of 256 tokens", (("gemm_tile", 256),), 1.0),
    ("30 GB of KV memory", (("kv_memory_bytes", 30e9),), 1.0),
    ("90 GB of KV memory", (("kv_memory_bytes", 90e9),), 1.0),
    ("batcher believes compute × 0.8", (), 0.8),
    ("batcher believes compute × 1.25", (), 1.25),
    ("rough machine", (("rough", True),), 1.0),
)


def sensitivity(runner: Runner, _folder: Path, n: int) -> str:
    kinds = (Case((), "dfs"), Case((), "blendserve"), Case((), "blend", LEARNED), Case((), "blend"))
    cases = [
        dataclasses.replace(kind, workload=("mix", d, s, n), hardware=hardware, prices=prices)
        for d, s in PAPER_TRACES
        for _, hardware, prices in CHANGES
        for kind in kinds
    ]
    found = runner.run(cases)
    size = len(CHANGES) * len(kinds)
    rows = []
    for i, (name, _, _) in enumerate(CHANGES):
        cells = []
        for j in range(len(kinds)):
            mine = [found[t * size + i * len(kinds) + j].practical for t in range(4)]
            cells.append(f"{mean(mine):.3f}")
        rows.append([name, *cells])
    head = ["machine", "depth-first", "two-ended", "blend, learned", "blend, known"]
    return "\n\n".join(
        [
            f"## What it depends on, {n:,} requests",
            "Share of each machine's own practical optimum, mean of the four traces. The rough "
            "machine has 2 ms per step, 128-token tiles, 75 and 85 % efficiency, overlap exponent "
            "3 and a smooth floor for weight reads.",
            table(head, rows),
        ]
    )


EXPLAINED = """## Differences from the paper, explained

- The paper measures a GPU with NanoFlow's kernels. Here a step takes the norm of its compute and
  its KV reads at data-sheet peaks, so tokens per second are higher than the paper's; shares and
  gains are what can be compared.
- BurstGPT's, OpenVid's and MMLU's lengths are not public in the form that the paper used. The
  mixes are solved for the same density and sharing from public or parametric lengths; their
  longest outputs (65,536 tokens) decide how small jobs end.
- All orders share one batcher: one safety against running out of memory, one prefix cache that
  knows which prefixes are still needed, projected lengths where they are known. So random order
  keeps more sharing than the paper's 30 %, and sequential engines lose less than with LRU.
- "Depth-first" mixes sets that differ in their system prompt alone, subtrees kept together. Taken
  literally, one set after the other, it does worse; that line stands beside it.
- The two-ended scan gives each side its share of KV memory by the density at its end, averaged
  over one part in 128 of the job, and prefills N p / d tokens of each side per step. Where the
  right side cannot fill its share, because its requests would peak together, the left keeps the
  proportion. That reproduces the paper's gain over depth-first order; its share of the optimum is
  lower than the paper's because the paper's practical optimum is a measured one.
- "Learned" is a run that knows nothing of output lengths but `max_tokens` at its start. "1 %
  sample" has means per stratum from a sample that cost nothing here.
"""


def build(options: argparse.Namespace) -> None:
    folder = options.output
    folder.mkdir(parents=True, exist_ok=True)
    runner = Runner(options.traces, options.processes)
    begin = time.monotonic()
    full = options.full
    parts: list[tuple[Callable[[Runner, Path, int], str], int]] = [
        (four_traces, 100_000),
        (grid, 40_000 if full else 20_000),
        (chats, 100_000 if full else 40_000),
        (models, 40_000 if full else 20_000),
        (ranks, 400_000 if full else 100_000),
        (sensitivity, 40_000 if full else 20_000),
    ]
    sections = []
    for part, n in parts:
        if options.only and part.__name__ not in options.only:
            continue
        at = time.monotonic()
        sections.append(part(runner, folder, options.requests or n))
        print(f"{part.__name__}: {time.monotonic() - at:.0f} s", flush=True)
    head = (
        "# The paper's comparison, simulated\n\nMade by `make bench-paper`. Shares of the "
        "practical optimum on the reference machine (A100-80GB shapes: 312 TFLOP/s, 2.039 TB/s, "
        "60 GB of KV memory, overlap exponent 4, no fixed cost per step), paper cost model. "
        "Simulated: no GPU was used."
    )
    text = "\n\n".join([head, *sections, EXPLAINED])
    (folder / "README.md").write_text(text, encoding="utf-8")
    print(text)
    print(f"{time.monotonic() - begin:.0f} s; written to {folder}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    here = Path(__file__).resolve().parent
    add("--traces", type=Path, default=here.parent.parent / "shared" / "data" / "traces")
    add("--output", type=Path, default=here / "paper")
    add("--full", action="store_true", help="larger workloads; takes hours")
    add("--requests", type=int, help="of every workload, for a quick look")
    add("--only", nargs="*", help="names of sections")
    add("--processes", type=int, default=min(2, multiprocessing.cpu_count()))
    options = parser.parse_args()
    if not options.traces.is_dir():
        parser.error(f"no folder {options.traces}: give the length traces with --traces")
    return options


if __name__ == "__main__":
    build(parse())
