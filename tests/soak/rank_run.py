"""A command for tests: executes a plan on several ranks with the fake engine.

python -m soak.rank_run PLAN RUN_DIR RANKS
"""

import signal
import sys
from pathlib import Path


def main() -> None:
    from blendrun.data.model_files import resolve_model
    from blendrun.engine import attempt, execute
    from blendrun.engine.settings import ExecuteSettings
    from blendrun.launch.local import LocalLauncher
    from blendrun.launch.rank_group import RankGroup
    from soak.fake_rank import ENGINE
    from tiny_jobs import SILENT

    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    attempt.find_model = execute.find_model = lambda plan, _: resolve_model(
        plan.model.spec, weights=False
    )
    plan, run_dir, ranks = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    group = RankGroup(LocalLauncher(ranks), ranks, ENGINE)
    try:
        execute.execute_plan(plan, run_dir, ExecuteSettings(), SILENT, ranks=group)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
