"""Are blendrun's greedy float32 tokens those of transformers, whatever the settings?

    python benchmarks/check_tokens.py PROMPTS... [--model M] [--rows 64] [--max-tokens-cap N]

Takes rows from every value of a `family` column and runs them for each policy with the default
settings, without prefix cache, with small and large chunks, and with so little KV memory that
requests are preempted. A row may leave transformers' answer only where the best logits are within
1e-4, and must stay greedy to within 1e-4 to its end. Exit code 1 if any row is wrong.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from peers.cli import Cli, output_tokens, unique_prompt_tokens
from peers.job import TokenJob, demo_model, demo_prompts, pick_rows, read_prompts, write_rows
from peers.reference import Reference

from blendrun.data.model_files import ModelFiles, resolve_model
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.kv_memory import kv_bytes_per_page
from blendrun.engine.settings import ExecuteSettings

POLICIES = "blend,blendserve,dfs,random"
SETTINGS = {
    "default": (),
    "no prefix cache": ("--no-prefix-cache",),
    "chunks of 64": ("--chunk-size", "64"),
    "chunks of 2048": ("--chunk-size", "2048"),
}
_POOL_FACTORS = (1.02, 1.1, 1.25, 1.5, 2.0, 3.0)  # of what the longest request needs
_FLOAT32_BYTES = 4
_ROW = "{:34} {:>6} {:>8} {:>6} {:>6} {:>10} {:>11} {:>9} {:>8}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One run against the reference; `problems` says what is wrong, row by row."""

    name: str
    equal: int
    near_ties: int
    missing: int  # error rows
    problems: tuple[str, ...]
    report: dict[str, Any]

    def line(self, unique: int) -> str:
        r = self.report
        return _ROW.format(
            self.name, self.equal, self.near_ties, len(self.problems), self.missing,
            r["preemptions"], r["recomputed_tokens"], r["computed_prompt_tokens"], unique,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Check:
    """A job, its right answers, and where its runs go."""

    cli: Cli
    work: Path
    job: TokenJob
    reference: Reference
    expected: list[list[int]]

    def run(self, plan: Path, name: str, flags: tuple[str, ...]) -> Verdict:
        """Execute a plan with some flags and compare all rows."""
        run_dir = self.work / "runs" / name.replace(" ", "-").replace(",", "")
        report = self.cli.execute(plan, run_dir, "--dtype", "float32", *flags)
        found = output_tokens(run_dir)
        equal = near_ties = missing = 0
        problems = []
        for row, prompt, right in zip(self.job.rows, self.job.prompts, self.expected, strict=True):
            tokens = found[row]
            if tokens is None:
                missing += 1
            elif tokens == right:
                equal += 1
            elif problem := self._difference(prompt, tokens, right):
                problems.append(f"row {row}: {problem}")
            else:
                near_ties += 1
        return Verdict(name, equal, near_ties, missing, tuple(problems), report)

    def _difference(self, prompt: list[int], tokens: list[int], right: list[int]) -> str | None:
        if not tokens:
            return "no tokens"
        found = self.reference.compare(prompt, tokens, right)
        if found.is_tie:
            return None
        gap = "one answer is cut" if found.gap is None else f"gap {found.gap:.2e}"
        return f"token {found.position} differs, {gap}, worst gap {found.worst_gap:.2e}"


def check_matrix(
    check: Check, prompts: str, model: str, policies: list[str], pools: list[int]
) -> bool:
    """Run all settings, print a line for each; True if every row is right."""
    print(_ROW.format("setting", "equal", "near tie", "wrong", "error", "preempted",
                      "recomputed", "computed", "unique"))  # fmt: skip
    good = True
    for policy in policies:
        plan = check.cli.plan(
            [prompts], model, check.work / f"{policy}.json", "--policy", policy, "--seed", "1"
        )
        unique = unique_prompt_tokens(plan)
        for name, flags in SETTINGS.items():
            verdict = check.run(plan, f"{policy}, {name}", flags)
            good &= _show(verdict, unique) and not verdict.missing
        good &= _check_preemption(check, plan, policy, pools, unique)
    return good


def _check_preemption(check: Check, plan: Path, policy: str, pools: list[int], unique: int) -> bool:
    """Try pools, smallest first, until every row fits and some are preempted."""
    good = True
    for pool in pools:
        name = f"{policy}, {pool / 2**20:.1f} MiB for KV"
        verdict = check.run(plan, name, ("--kv-memory", str(pool)))
        good &= _show(verdict, unique)
        if verdict.report["preemptions"] and not verdict.missing:
            return good
    print(f"{policy}: no pool made it preempt with every row answered", flush=True)
    return False


def _show(verdict: Verdict, unique: int) -> bool:
    print(verdict.line(unique), *verdict.problems, sep="\n    ", flush=True)
    return not verdict.problems


def pool_sizes(files: ModelFiles, job: TokenJob) -> list[int]:
    """KV bytes to try: from hardly more than the longest request needs."""
    page_size = ExecuteSettings().page_size
    page_bytes = kv_bytes_per_page(DecoderConfig.from_hf(files.config), page_size, _FLOAT32_BYTES)
    lengths = [len(p) + n for p, n in zip(job.prompts, job.max_tokens, strict=True)]
    least = -(-max(lengths) // page_size) + 2
    pages = [max(round(least * factor), least + i) for i, factor in enumerate(_POOL_FACTORS)]
    return [n * page_bytes for n in pages]


def check_prompts(job: TokenJob, reference: Reference, rows: list[dict[str, Any]]) -> bool:
    """Does blendrun give the model the prompt tokens that transformers would?"""
    pairs = zip(job.rows, job.prompts, strict=True)
    wrong = [row for row, prompt in pairs if reference.prompt_tokens(rows[row]) != prompt]
    print(f"prompts: {len(job.rows)} rows to answer of {len(rows)}, "
          f"{len(wrong)} tokenized differently {wrong or ''}", flush=True)  # fmt: skip
    return not wrong


def answers(reference: Reference, job: TokenJob) -> list[list[int]]:
    """transformers' answer to every request."""
    found = []
    for i, (prompt, max_tokens) in enumerate(zip(job.prompts, job.max_tokens, strict=True)):
        found.append(reference.generate(prompt, max_tokens))
        print(f"\rtransformers: {i + 1} of {len(job.rows)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("prompts", nargs="*", help="Parquet or JSONL; default: sample_data")
    parser.add_argument("--model", help="default: the demo model")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--max-tokens-cap", type=int, help="shorter answers, for a quick run")
    parser.add_argument(
        "--reference-cache", type=Path, help="file that keeps transformers' answers (JSON lines)"
    )
    return parser.parse_args()


def main() -> None:
    options = parse()
    files = resolve_model(options.model or demo_model())
    cli = Cli(options.threads)
    table = read_prompts(options.prompts or demo_prompts())
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        prompts = work / "prompts.parquet"
        write_rows(table, pick_rows(table, options.rows), options.max_tokens_cap, prompts)
        job = TokenJob.of_plan(cli.plan([str(prompts)], files.spec, work / "job.json"))
        cache = options.reference_cache or work / "reference.jsonl"
        reference = Reference(files, cache, options.threads)
        good = check_prompts(job, reference, pq.read_table(prompts).to_pylist())
        check = Check(cli, work, job, reference, answers(reference, job))
        policies = options.policies.split(",")
        good &= check_matrix(check, str(prompts), files.spec, policies, pool_sizes(files, job))
    print("all right" if good else "WRONG")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
