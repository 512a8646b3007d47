"""Runs one section: `python -m gpu_check.section NAME RESULT.json`, options on stdin."""

import sys
from importlib import import_module
from pathlib import Path

from gpu_check.options import CheckOptions
from gpu_check.results import Findings


def main() -> None:
    name, result = sys.argv[1:]
    options = CheckOptions.from_json(sys.stdin.read())
    import_module(f"gpu_check.{name}").check(options, Findings(Path(result)))


if __name__ == "__main__":
    main()
