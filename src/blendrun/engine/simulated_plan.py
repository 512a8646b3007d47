"""What the simulator needs of a stored plan: its job, and its costs on any machine."""

import numpy as np

from blendrun.cost.cost_model import CostModel, Flavour
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.data.model_files import resolve_model
from blendrun.engine.simulated_job import SimulatedJob
from blendrun.schedule.lengths import is_known
from blendrun.schedule.plan_file import StoredPlan
from blendrun.schedule.plan_record import Plan
from blendrun.tree.build import build_tree
from blendrun.tree.prefix_tree import PrefixTree


def plan_shape(plan: Plan) -> ModelShape:
    """Shape of the plan's model.

    Raises:
        InputError: the model is not where it was.
    """
    if plan.model.spec.endswith(".toml"):
        return ModelShape.load(plan.model.spec)
    files = resolve_model(plan.model.spec, weights=False, engine=plan.engine)
    return ModelShape.from_hf_config(files.config, plan.model.name)


def plan_cost(
    plan: Plan, hardware: str | None = None, tp: int | None = None, shape: ModelShape | None = None
) -> CostModel:
    """Costs of the plan's model, on its own machine or on another."""
    profile = HardwareProfile.load(hardware or str(plan.settings["hardware"]))
    flavour: Flavour = "paper" if plan.cost == "paper" else "product"
    return CostModel.of_group(shape or plan_shape(plan), profile, tp or plan.tp, flavour)


def simulated_job(stored: StoredPlan) -> SimulatedJob:
    """The plan's requests; where no column states a length, what the plan expects is the truth."""
    table = stored.requests.take(np.argsort(stored.requests["request"].to_numpy()))
    expected = table["expected_output_len"].to_numpy().astype(np.int32)
    max_output = np.maximum(table["max_tokens"].to_numpy(), 1).astype(np.int32)
    stated = is_known(table)
    prior = np.minimum(max_output, int(stored.plan.settings["prior_output_len"]))
    return SimulatedJob(_tree(stored), expected, max_output, prior.astype(np.int32), stated)


def _tree(stored: StoredPlan) -> PrefixTree:
    """The tree as the prompts have it: `blendserve` keeps a split one."""
    if stored.plan.policy == "blendserve":
        return build_tree(stored.store.tokens, stored.store.offsets)
    return stored.tree
