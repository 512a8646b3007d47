"""One job through blendrun and through its peers, in pairs in turn.

    make bench-peers
    python benchmarks/bench_peers.py [--job evalmix] [--rows N] [--unique-prefixes] [--only PEER]

Every engine gets the same token ids, the same bf16 checkpoint and as much memory for KV pages,
answers greedily, and ignores end-of-sequence, so that it makes the `max_tokens` of each row.
Seconds are those of generation; loading is apart. What is not installed is skipped with the
reason; benchmarks/README.md says how to install each peer. Prints a table, then one JSON line.
"""

import argparse
import functools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from peers.checkpoint import write_bf16
from peers.cli import Cli
from peers.comparison import Line, Open, compare, markdown, record, run_once
from peers.contenders import Blendrun, PeerError, Run
from peers.job import TokenJob, demo_model
from peers.peer_process import PeerProcess
from peers.roster import PEERS, Peer, vllm_environment

from blendrun.data.model_files import resolve_model

_DATA = Path(__file__).parents[2] / "shared/data"
_WITH_VLLM = Path(__file__).parents[1] / ".venv-vllm/bin/python"
VLLM = next(peer for peer in PEERS if peer.name == "vllm")
THROUGH_VLLM = "vllm-through-blendrun"  # its baseline run: the order of the file


class Arena:
    """A job of so many rows, planned for blendrun, and the checkpoint that all engines load."""

    def __init__(
        self, options: argparse.Namespace, model: Path, num_rows: int | None, work: Path
    ) -> None:
        work.mkdir()
        self._options, self._model, self._work, self._cli = options, model, work, Cli()
        prompts = str(job_file(options.job))
        limit = [] if num_rows is None else ["--limit", str(num_rows)]
        first = self._cli.plan([prompts], str(model), work / "plan.json", "--ignore-eos", *limit)
        self.job = TokenJob.of_plan(first)
        if options.unique_prefixes:
            config = json.loads((model / "config.json").read_text(encoding="utf-8"))
            self.job = self.job.with_unique_beginnings(config["vocab_size"])
            prompts, limit = str(work / "unique.parquet"), []
            self.job.write_prompts(Path(prompts))
        print(f"{len(self.job.rows)} rows, {self.job.num_prompt_tokens:,} prompt and "
              f"{self.job.num_output_tokens:,} output tokens", file=sys.stderr)  # fmt: skip
        self._plan_flags = ["--ignore-eos", *limit]
        self._prompts = prompts
        # the first use of a version compiles its batcher and kernels
        few = self._cli.plan([prompts], str(model), work / "few.json", "--limit", "2")
        self._cli.execute(few, work / "few.run")

    def blendrun(self, policy: str) -> Blendrun:
        """blendrun with one policy, planned."""
        plan = self._cli.plan(
            [self._prompts], str(self._model), self._work / f"{policy}.json", "--policy", policy,
            *self._plan_flags,
        )  # fmt: skip
        flags = ["--kv-memory", f"{self._options.kv_gib}GiB"]
        return Blendrun(self._cli, plan, self.job.rows, flags, f"policy {policy}")

    def through_vllm(self) -> Blendrun:
        """The same plan's rows in the order of the file, vLLM computing. Raises PeerError."""
        environment = vllm_environment(VLLM.python(), self._options.kv_gib)
        cli = Cli(python=_WITH_VLLM, environment=environment)
        if not cli.program.is_file():
            raise PeerError(f"there is no {cli.program}: make test-vllm")
        own = self.blendrun("arrival")
        flags = ["--engine", "vllm", *own.flags]
        return Blendrun(cli, own.plan, own.rows, flags, own.settings, name=THROUGH_VLLM)

    def policy_tries(self, policy: str) -> list[Open]:
        """blendrun with another policy, as a rival of its own."""
        return [functools.partial(self.blendrun, policy)]

    def tries(self, peer: Peer) -> list[Open]:
        """What loads a peer, for each of its settings."""
        fixed = dict(self._options.setting)
        return [
            functools.partial(
                PeerProcess, peer, settings, self.job, self._model, self._options.kv_gib, self._work
            )
            for settings in peer.settings(fixed)
        ]


def contest(
    arena: Arena, peers: list[Peer], policies: list[str], repeats: int, through_vllm: bool
) -> list[dict[str, Any]]:
    """Every peer, and blendrun's other policies, in pairs with its first; a record per line."""
    own = arena.blendrun(policies[0])
    rivals = [(f"policy {name}", arena.policy_tries(name)) for name in policies[1:]]
    rivals += [(peer.name, arena.tries(peer)) for peer in peers]
    if through_vllm:
        rivals.append((THROUGH_VLLM, [arena.through_vllm]))
    own_runs: list[Run] = []
    lines: list[Line] = []
    for name, tries in rivals:
        try:
            theirs, ours = compare(own, tries, repeats)
        except PeerError as error:
            print(f"{name} skipped: {error}", file=sys.stderr, flush=True)
            continue
        lines += theirs
        own_runs += ours
    own_runs = own_runs or [run_once(own) for _ in range(repeats)]
    first = Line(own.name, own.version, own.settings, own.load_s, own_runs)
    return [record(line, arena.job, own_runs[0]) for line in (first, *lines)]


def bench(options: argparse.Namespace, work: Path) -> list[dict[str, Any]]:
    """All records: the fast peers on the whole job, the slow ones on a part of it."""
    folder = resolve_model(options.model or demo_model()).folder
    model = write_bf16(folder, work / "checkpoint")
    peers = [peer for peer in PEERS if not options.only or peer.name in options.only]
    fast, slow = ([peer for peer in peers if peer.slow is so] for so in (False, True))
    policies = options.policies.split(",")
    records: list[dict[str, Any]] = []
    through_vllm = not options.only or THROUGH_VLLM in options.only
    if fast or through_vllm or not slow:
        arena = Arena(options, model, options.rows, work / "whole")
        records += contest(arena, fast, policies, options.repeats, through_vllm)
    if slow:
        rows = min(options.rows or options.slow_rows, options.slow_rows)
        arena = Arena(options, model, rows, work / "part")
        records += contest(arena, slow, policies[:1], options.repeats, through_vllm=False)
    return records


def job_file(job: str) -> Path:
    """A prompt file, or one of ../shared/data by its name."""
    return Path(job) if Path(job).suffix else _DATA / f"{job}.parquet"


def setting(word: str) -> tuple[str, str]:
    """NAME=VALUE of a setting that some peer has. Raises ArgumentTypeError."""
    name, _, value = word.partition("=")
    known = {name for peer in PEERS for name in peer.tried}
    fits = value in ("file", "sorted") if name == "order" else name in known and value.isdecimal()
    if not fits:
        names = ", ".join(f"{name}=N" for name in sorted(known))
        raise argparse.ArgumentTypeError(f"{word}: not order=file, order=sorted or any of {names}")
    return name, value


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    names = [peer.name for peer in PEERS]
    add("--job", default="evalmix", help="a prompt file, or a name in ../shared/data")
    add("--model", help="default: the demo model")
    add("--rows", type=int, help="only the first N rows")
    add("--slow-rows", type=int, default=40, help="rows at most for " + " and ".join(
        peer.name for peer in PEERS if peer.slow))  # fmt: skip
    add("--unique-prefixes", action="store_true", help="a first token of its own for each row")
    add("--only", action="append", choices=["blendrun", *names, THROUGH_VLLM],
        help="can be given several times")  # fmt: skip
    add("--setting", action="append", default=[], type=setting, metavar="NAME=VALUE",
        help="this value alone, for peers that have the setting: order=sorted")  # fmt: skip
    add("--policies", default="blend", help="of blendrun; peers are paired with the first")
    add("--repeats", type=int, default=2, help="pairs with the fastest setting of each peer")
    add("--kv-gib", type=int, default=4, help="memory for KV pages of every engine")
    return parser.parse_args()


def main() -> None:
    options = parse()
    if not job_file(options.job).is_file():
        print(f"skipped: there is no {job_file(options.job)}")
        return
    with tempfile.TemporaryDirectory() as folder:
        records = bench(options, Path(folder))
    print(markdown(records))
    print(json.dumps({"cores": len(os.sched_getaffinity(0)), "engines": records}))


if __name__ == "__main__":
    main()
