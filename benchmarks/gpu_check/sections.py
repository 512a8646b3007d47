"""The sections of a check. Each is a process with a time limit: none can stop or spoil another."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_check.needs import BLENDRUN, DEVICE, why_not
from gpu_check.options import CheckOptions
from gpu_check.results import read_result

_DRY_FACTOR = 20  # of time limits: dry runs compile for the CPU, often on a busy machine
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    limit_s: float
    needs: tuple[str, ...]


SECTIONS = (
    Section("ceilings", 40, DEVICE),
    Section("numerics", 100, DEVICE),
    Section("profile", 140, (*DEVICE, *BLENDRUN)),  # calibrates; the interference curve, too
    Section("job", 180, (*DEVICE, *BLENDRUN)),
)


def run_section(section: Section, options: CheckOptions) -> Mapping[str, Any]:
    """What it found: `seconds`, `error` (None where all went well), and figures of its own.

    A section that is ended because of its limit keeps what it had found so far.
    """
    problem = why_not(section.needs)
    if problem is not None:
        return {"seconds": 0.0, "error": f"not run, {problem}"}
    found_in = options.work / f"{section.name}.json"
    folders = [_ROOT / "src", _ROOT / "benchmarks", *([_ROOT / "tests"] * options.dry_run)]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    # profiles of this check only, and nothing from the network
    environment = {
        **os.environ,
        "PYTHONPATH": path.rstrip(os.pathsep),
        "XDG_CONFIG_HOME": str(options.work / "config"),
        "HF_HUB_OFFLINE": "1",
    }
    if options.dry_run:
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", "gpu_check.section", section.name, str(found_in)]
    limit_s = section.limit_s * (_DRY_FACTOR if options.dry_run else 1)
    begin, error = time.monotonic(), None
    log = options.work / f"{section.name}.log"
    with log.open("wb") as output:
        try:
            subprocess.run(
                command,
                input=options.to_json().encode(),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                timeout=limit_s,
                check=True,
            )
        except subprocess.TimeoutExpired:
            error = f"ended after {limit_s:.0f} s"
        except subprocess.CalledProcessError:
            lines = log.read_text(errors="replace").strip().splitlines()
            error = lines[-1] if lines else "it failed and said nothing"
    return {
        **read_result(found_in),
        "seconds": round(time.monotonic() - begin, 1),
        "error": error,
        "log": str(log),
    }
