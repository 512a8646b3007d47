"""Checks on a GPU what was built without one: `make gpu-check`, or `python -m gpu_check`.

    python -m gpu_check [--dry-run] [--output gpu-check.json] [--work FOLDER] [--only ceilings,job]

Under eight minutes. Needs torch with CUDA, Triton and numpy for the first two sections, all of
blendrun's dependencies for the others. Prints a short table last; everything is in the JSON file.
A dry run does the same with tiny shapes on the CPU, on the stand-in for FlashInfer of the tests;
its figures mean nothing.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_check.needs import BLENDRUN, DEVICE, OPTIONAL, missing
from gpu_check.options import CheckOptions
from gpu_check.sections import SECTIONS, run_section
from gpu_check.table import lines

NUM_CASES = 8  # of `numerics`, for each kernel library
PREFERRED = ("flashinfer", "triton", "torch")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description="Check blendrun on a GPU.")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--output", type=Path, default=Path("gpu-check.json"))
    parser.add_argument("--work", type=Path, help="folder to keep plans and runs in")
    parser.add_argument("--only", help="some of " + ", ".join(s.name for s in SECTIONS))
    return parser.parse_args()


def main() -> None:
    options = parse()
    wanted = options.only.split(",") if options.only else [s.name for s in SECTIONS]
    unknown = set(wanted) - {s.name for s in SECTIONS}
    if unknown:
        sys.exit(f"no section {', '.join(sorted(unknown))}")
    say_what_is_missing()
    with tempfile.TemporaryDirectory() as folder:
        work = (options.work or Path(folder)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        size = CheckOptions.dry(work) if options.dry_run else CheckOptions.real(work)
        found: dict[str, Any] = {}
        for section in SECTIONS:
            if section.name in wanted:
                print(f"{section.name}: at most {section.limit_s:.0f} s", flush=True)
                found[section.name] = run_section(section, size)
                if section.name == "numerics" and not options.dry_run:
                    size = replace(size, attention=best_attention(found["numerics"]))
                save(options.output, options.dry_run, found)
    print()
    if options.dry_run:
        print("dry run: no device, the figures mean nothing")
    print("\n".join(lines(found)))
    print(f"\neverything: {options.output}")
    bad = [name for name, of in found.items() if of["error"] is not None or of.get("failed")]
    sys.exit(1 if bad else 0)


def best_attention(numerics: Mapping[str, Any]) -> str:
    """The first that was right in all cases; the engine's own choice where none was tried."""
    errors, limit = numerics.get("errors", {}), numerics.get("tolerance", 0.0)
    for name in (name for name in PREFERRED if name in errors):
        by_case = errors[name]
        right = [not isinstance(error, str) and error <= limit for error in by_case.values()]
        if len(right) == NUM_CASES and all(right):
            return name
    return "auto"


def say_what_is_missing() -> None:
    """Before anything runs: there is no network to mend it later."""
    for name in missing([*DEVICE, *(wheel for wheel in BLENDRUN if wheel not in DEVICE)]):
        print(f"missing: {name}; see benchmarks/README.md for the wheels to bring")
    for name in missing(list(OPTIONAL)):
        print(f"without {name}: {OPTIONAL[name]} are left out")


def save(path: Path, is_dry: bool, found: dict[str, Any]) -> None:
    """After each section: what was found is not lost with the next one."""
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "dry_run": is_dry}
    path.write_text(json.dumps({**about, **found}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
