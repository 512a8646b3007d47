"""A peer's script as a subprocess that stays loaded between its runs, and is stopped there.

Libraries keep threads waiting in loops, which would take time from whoever runs meanwhile.
"""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import IO, Any

from peers.contenders import PeerError, Run
from peers.job import TokenJob
from peers.roster import Peer

_HERE = Path(__file__).resolve().parent
_SHOWN = 3000  # characters of what a failed peer said
_PATIENCE_S = 60  # for a peer to end when it is told to


class PeerProcess:
    """A peer's script that has loaded the checkpoint and waits to be told to run."""

    def __init__(
        self, peer: Peer, settings: dict[str, str], job: TokenJob, model: Path, kv_gib: int,
        work: Path,
    ) -> None:  # fmt: skip
        """Raises PeerError if it is not installed or does not start."""
        self.name = peer.name
        self.settings = ", ".join(f"{name} {value}" for name, value in settings.items())
        self._job = job.in_prefix_order() if settings["order"] == "sorted" else job
        python, job_path = peer.python(), work / f"job-{settings['order']}.json"
        self._job.save(job_path)
        options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()
                   if name != "order"]  # fmt: skip
        self._log = (work / "peer.log").open("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen(
            [python, _HERE / peer.script, job_path, "--model", model, f"--kv-gib={kv_gib}",
             *options],
            env={**os.environ, **peer.environment(python, kv_gib)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        said = self._listen()
        if "missing" in said:
            self.close()
            raise PeerError(said["missing"])
        self.version, self.load_s = said["version"], said["load_s"]
        self._process.send_signal(signal.SIGSTOP)

    def run(self) -> Run:
        self._process.send_signal(signal.SIGCONT)
        requests: IO[str] | None = self._process.stdin
        assert requests is not None
        with contextlib.suppress(BrokenPipeError):  # what it said last is in the error below
            print(file=requests, flush=True)
        said = self._listen()
        self._process.send_signal(signal.SIGSTOP)
        if said["output_tokens"] != self._job.num_output_tokens:
            raise PeerError(
                f"made {said['output_tokens']} output tokens, not {self._job.num_output_tokens}"
            )
        answers = dict(zip(self._job.rows, said["answers"], strict=True))
        return Run(said["generate_s"], answers, said["computed_prompt_tokens"])

    def close(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def _listen(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._log.seek(0)
            tail = self._log.read()[-_SHOWN:]
            self.close()
            raise PeerError(f"ended with {status}:\n{tail}")
        said: dict[str, Any] = json.loads(line)
        return said
