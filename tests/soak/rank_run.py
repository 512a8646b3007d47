"""A command for tests: executes a plan on several ranks with the fake engine.

python -m soak.rank_run PLAN RUN_DIR RANKS [RAY_ADDRESS]
"""

import signal
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def main() -> None:
    from blendrun.data.model_files import resolve_model
    from blendrun.engine import attempt, execute
    from blendrun.engine.settings import ExecuteSettings
    from blendrun.launch.local import LocalLauncher
    from blendrun.launch.rank_group import RankGroup
    from blendrun.launch.ray_ranks import RayLauncher
    from soak.fake_rank import ENGINE
    from tiny_jobs import SILENT

    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    attempt.find_model = execute.find_model = lambda plan, _: resolve_model(
        plan.model.spec, weights=False
    )
    plan, run_dir, ranks = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    events = SimpleNamespace(**{**vars(SILENT), "note": lambda text: print(text, file=sys.stderr)})
    with ExitStack() as at_end:
        launcher: Any = LocalLauncher(ranks)
        if len(sys.argv) > 4:
            launcher = at_end.enter_context(closing(RayLauncher(ranks, sys.argv[4], events.note)))
        group = RankGroup(launcher, ranks, ENGINE)
        try:
            execute.execute_plan(plan, run_dir, ExecuteSettings(), events, ranks=group)
        except KeyboardInterrupt:
            sys.exit(130)


if __name__ == "__main__":
    main()
