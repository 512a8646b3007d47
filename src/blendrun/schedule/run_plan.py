"""The plan that a run folder belongs to."""

from pathlib import Path

from blendrun.data.manifest import MANIFEST_FILE, Manifest, read_manifest
from blendrun.errors import InputError, PlanError
from blendrun.schedule.plan_file import read_header
from blendrun.schedule.plan_record import Plan


def plan_of_run(run_dir: Path) -> tuple[Manifest, Path, Plan]:
    """The manifest of a run, complete or not, and its plan.

    Raises:
        InputError: the folder holds no run.
        PlanError: its plan is gone, or was made for another job since.
    """
    manifest = read_manifest(run_dir)
    if manifest is None:
        below = sorted(path.parent for path in run_dir.glob(f"*/{MANIFEST_FILE}"))
        hint = "give the --run-dir of blendrun execute"
        if below:
            hint = f"it has runs in it: {', '.join(map(str, below))}"
        raise InputError(f"{run_dir} holds no run", hint)
    path = _find_plan(manifest, run_dir)
    plan, _ = read_header(path)
    if plan.job_id != manifest.identity.get("job_id"):
        raise PlanError(
            f"{path} is not the plan of {run_dir} any more: it was made for other prompts",
            "restore the plan, or plan the same prompts again",
        )
    return manifest, path, plan


def _find_plan(manifest: Manifest, run_dir: Path) -> Path:
    """The plan where it was, or beside the run if both were moved."""
    plan = Path(manifest.plan)
    beside = [run_dir / plan.name, run_dir.parent / plan.name]
    return next((path for path in [plan, *beside] if path.is_file()), plan)
