"""llama.cpp's server with continuous batching: a bf16 GGUF, a slot per running request, and its
own choice of the slot or saved prompt that a request has most in common with.

`LLAMA_CPP` names a source folder of llama.cpp that is built in `build`; its converter makes the
GGUF once, beside the checkpoint, in this environment. Each slot has a KV cache of its own (not
"unified"), because attention then reads no other slot's; it holds 16-bit floats, the default.
Twice as many requests as slots are under way, so that no slot waits for the client.
"""

import argparse
import atexit
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import Answers, Engine, Job, MissingError, kv_tokens, serve

_START_S = 300  # patience until the server answers


class LlamaServer:
    def __init__(self, options: argparse.Namespace, job: Job, source: Path) -> None:
        program = source / "build/bin/llama-server"
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        self.version = (said.stderr + said.stdout).split("version: ")[1].split()[0]
        self._slots = min(options.slots, kv_tokens(options) // (job.max_len + 1))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        threads = str(len(os.sched_getaffinity(0)))
        self._command = [
            str(program), "-m", str(converted(options.model, source)), "--port", str(self._port),
            "--parallel", str(self._slots), "--ctx-size", str(self._slots * (job.max_len + 1)),
            "--no-kv-unified", "--flash-attn", "on", "--ubatch-size", str(options.ubatch_size),
            "--threads", threads, "--threads-http", str(2 * self._slots + 2),
            "--cache-ram", str(options.kv_gib << 10), "--log-disable",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)
        self.reset()

    def reset(self) -> None:
        """A new server: there is no call that empties all slots and the saved prompts."""
        self.close()
        self._process = subprocess.Popen(self._command)
        deadline = time.monotonic() + _START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError("llama-server did not start")
            time.sleep(0.2)

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def generate(self, job: Job) -> Answers:
        with ThreadPoolExecutor(2 * self._slots) as pool:
            said = list(pool.map(self._complete, job.prompts, job.max_tokens))
        return Answers(
            [answer["tokens"] for answer in said],
            sum(answer["timings"]["prompt_n"] for answer in said),
        )

    def _complete(self, prompt: list[int], num_new: int) -> dict[str, Any]:
        body = {
            "prompt": prompt,
            "n_predict": num_new,
            "temperature": 0.0,
            "samplers": ["temperature"],
            "ignore_eos": True,
            "cache_prompt": True,
            "return_tokens": True,
        }
        status, said = self._ask("POST", "/completion", json.dumps(body))
        if status != http.HTTPStatus.OK:
            raise RuntimeError(f"llama-server answered {status}: {said[:500]!r}")
        answer: dict[str, Any] = json.loads(said)
        return answer

    def _is_ready(self) -> bool:
        try:
            return self._ask("GET", "/health")[0] == http.HTTPStatus.OK
        except OSError:
            return False

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def converted(model: Path, source: Path) -> Path:
    """The checkpoint as a bf16 GGUF, made if it is not there yet."""
    target = model.with_name(model.name + "-bf16.gguf")
    if not target.is_file():
        making = target.with_suffix(".part")
        command = [sys.executable, str(source / "convert_hf_to_gguf.py"), str(model)]
        subprocess.run([*command, "--outtype", "bf16", "--outfile", str(making)], check=True)
        making.rename(target)
    return target


def load(options: argparse.Namespace, job: Job) -> Engine:
    source = Path(os.environ.get("LLAMA_CPP", ""))
    if not (source / "build/bin/llama-server").is_file():
        raise MissingError("LLAMA_CPP names no folder with build/bin/llama-server")
    return LlamaServer(options, job, source)


if __name__ == "__main__":
    serve(load, slots=32, ubatch_size=512)
