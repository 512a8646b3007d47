"""How fast the run could have been: the optimum for the lengths that really came out."""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from blendrun.config import from_table
from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.cost.optimum import Optimum, min_steps, optimum
from blendrun.data.answers import answer_keys
from blendrun.data.results import keys_of, read_answers
from blendrun.engine.run_dir import Manifest
from blendrun.schedule.plan_file import StoredPlan
from blendrun.tree.annotate import annotate
from blendrun.tree.prefix_tree import ROOT

_COUNTS = ("num_prompt_tokens", "num_cached_tokens", "num_output_tokens")


def run_optimum(stored: StoredPlan, manifest: Manifest, run_dir: Path) -> Optimum | None:
    """The bound for the answered requests with their true output lengths.

    None where the run is not complete: a part of a tree has no optimum of its own. The tree is
    the plan's; where the plan split it, the sharing that this gave up is not in the bound.
    """
    if not manifest.is_complete or "hardware" not in manifest.environment:
        return None
    hardware = from_table(HardwareProfile, manifest.environment["hardware"], "manifest: hardware")
    shape = from_table(ModelShape, manifest.environment["model_shape"], "manifest: model_shape")
    environment = manifest.environment
    ranks = environment.get("dp", 1)
    cost = CostModel(shape, hardware, environment.get("tp", 1), environment.get("cost", "product"))
    output_len = _output_lengths(stored, run_dir)
    tree = stored.tree
    priced = annotate(tree, output_len, cost)
    whole_s = float(cost.compute_s(tree.prompt_len, output_len).sum())
    shared_s = float(priced.compute_s[ROOT])
    own_len = tree.edge_len[tree.leaf_node]
    capacity = int(manifest.environment["kv_pages"]) * int(manifest.environment["page_size"])
    # rank-seconds, as the metrics are
    steps = ranks * min_steps(own_len, output_len, ranks * capacity, cost)
    return optimum(whole_s, float(priced.memory_s[ROOT]), steps, cost, whole_s - shared_s)


def _output_lengths(
    stored: StoredPlan, run_dir: Path
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Output tokens of every request, by request number; 0 for error rows and copied answers."""
    answers = read_answers(run_dir, _COUNTS)
    prompt, cached, output = (pc.fill_null(answers[name], 0).to_numpy() for name in _COUNTS)
    computed = np.where((cached == prompt) & (prompt > 0), 0, output)  # all there: a copy
    requests = stored.requests
    keys = answer_keys(requests["row"].to_numpy(), requests["sample"].to_numpy())
    lengths = np.zeros(requests.num_rows, np.int32)
    lengths[requests["request"].to_numpy()] = computed[np.searchsorted(keys_of(answers), keys)]
    return lengths
