"""Another policy than the plan's, chosen when it is executed."""

from dataclasses import replace

from blendrun.engine.requests import EngineRequests
from blendrun.errors import InputError
from blendrun.schedule.orders import POLICIES, OrderSettings, order_requests
from blendrun.schedule.plan_record import Plan
from blendrun.tree.annotate import Annotations
from blendrun.tree.prefix_tree import PrefixTree

_SPLITS = "blendserve"  # has a tree of its own, which only planning makes


def check_policy(plan: Plan, policy: str | None) -> None:
    """Raises InputError where a run of `plan` cannot have that policy."""
    if policy in (None, plan.policy):
        return
    if policy not in POLICIES:
        raise InputError(f"policy must be one of {', '.join(POLICIES)}, not {policy}")
    if _SPLITS in (policy, plan.policy):
        raise InputError(
            f"a plan of policy {plan.policy} cannot be executed with policy {policy}",
            f"plan again with --policy {policy}",
        )


def with_policy(
    plan: Plan, requests: EngineRequests, policy: str | None
) -> tuple[Plan, EngineRequests]:
    """The plan and the requests of a window in the order of `policy`; None: the plan's."""
    if policy is None or policy == plan.policy:
        return plan, requests
    settings = OrderSettings(
        seed=int(plan.settings["seed"]),
        keep_sharing=float(plan.settings["keep_sharing"]),
        everything_fits=False,
        kv_capacity_tokens=plan.counts.kv_capacity_tokens,
    )
    order = order_requests(policy, requests.tree, _no_lengths, settings)
    changed = replace(plan, policy=policy, admission=order.admission)
    return changed, replace(requests, sequence=order.sequence)


def _no_lengths(tree: PrefixTree) -> Annotations:
    """For the policies here, which do not ask."""
    del tree
    raise InputError("this policy needs a plan of its own", "plan again with --policy")
