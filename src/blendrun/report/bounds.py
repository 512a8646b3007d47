"""How fast the run could have been: the optimum for the lengths that really came out."""

from collections.abc import Iterable
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from blendrun.config import from_table
from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import BF16_BYTES, ModelShape
from blendrun.cost.optimum import Optimum
from blendrun.data.answers import answer_keys
from blendrun.data.manifest import Manifest
from blendrun.data.results import keys_of, read_answers
from blendrun.schedule.plan_file import StoredPlan
from blendrun.tree.annotate import annotate
from blendrun.tree.bound import job_optimum

_COUNTS = ("num_prompt_tokens", "num_cached_tokens", "num_output_tokens")


def run_cost(manifest: Manifest) -> CostModel:
    """The prices with which a run's steps were recorded. It must have an environment."""
    environment = manifest.environment
    hardware = from_table(HardwareProfile, environment["hardware"], "manifest: hardware")
    shape = from_table(ModelShape, environment["model_shape"], "manifest: model_shape")
    return CostModel(
        shape,
        hardware,
        environment.get("tp", 1),
        environment.get("cost", "product"),
        environment.get("kv_element_bytes", BF16_BYTES),
    )


def run_optimum(windows: Iterable[StoredPlan], manifest: Manifest, run_dir: Path) -> Optimum | None:
    """The bound for the answered requests with their true output lengths, in rank-seconds.

    None where the run is not complete: a part of a tree has no optimum of its own. The tree is
    the plan's; where the plan split it, the sharing that this gave up is not in the bound. Windows
    run one after the other, so their bounds add up.
    """
    if not manifest.is_complete or "hardware" not in manifest.environment:
        return None
    environment, cost = manifest.environment, run_cost(manifest)
    capacity = int(environment["kv_pages"]) * int(environment["page_size"])
    answers = read_answers(run_dir, _COUNTS)
    bounds = []
    for stored in windows:
        output_len = _output_lengths(stored, answers)
        priced = annotate(stored.tree, output_len, cost)
        ranks = environment.get("dp", 1)
        bounds.append(job_optimum(stored.tree, output_len, priced, cost, ranks, capacity))
    return reduce(add, bounds)


def _output_lengths(
    stored: StoredPlan, answers: pa.Table
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Output tokens of every request, by request number; 0 for error rows and copied answers."""
    prompt, cached, output = (pc.fill_null(answers[name], 0).to_numpy() for name in _COUNTS)
    computed = np.where((cached == prompt) & (prompt > 0), 0, output)  # all there: a copy
    return by_request(stored, answers, computed)


def by_request(
    stored: StoredPlan, answers: pa.Table, values: np.ndarray[tuple[int], np.dtype[np.int32]]
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Values of all answers of a complete run, by request number."""
    requests = stored.requests
    keys = answer_keys(requests["row"].to_numpy(), requests["sample"].to_numpy())
    of_request = np.zeros(requests.num_rows, np.int32)
    of_request[requests["request"].to_numpy()] = values[np.searchsorted(keys_of(answers), keys)]
    return of_request
