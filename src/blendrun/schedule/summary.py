"""What a plan says of itself: counts, times, warnings and the identity of the job."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import reduce
from operator import add

import numpy as np
import pyarrow as pa

from blendrun import __version__
from blendrun.config import Resolved
from blendrun.data.content import as_bytes
from blendrun.data.ingest import Ingested
from blendrun.schedule.estimate import predict
from blendrun.schedule.lengths import PRIOR
from blendrun.schedule.orders import Order
from blendrun.schedule.partition import Part
from blendrun.schedule.plan_model import PlannedModel
from blendrun.schedule.plan_record import FORMAT, VERSION, Plan, PlanCounts, PlannedRank
from blendrun.schedule.priced_job import PricedJob
from blendrun.schedule.settings import PlanSettings
from blendrun.schedule.step_job import steering
from blendrun.tree.match import content_node
from blendrun.tree.sharing import computed_prompt_tokens
from blendrun.units import count_of

_MOST_WARNINGS = 8


def describe(
    job: PricedJob,
    order: Order,
    model: PlannedModel,
    settings: Resolved[PlanSettings],
    parts: Sequence[Part],
    window: int | None = None,
    ranks_reason: str = "",
) -> Plan:
    """The plan of `job` in `order`, without its sources; `parts` where there are several ranks."""
    wanted = settings.value
    counts = _counts(job, order)
    budget = steering(order.admission, wanted.budget, job.cost, True).budget
    times = predict(job, counts, wanted.policy, budget, parts)
    return Plan(
        format=FORMAT,
        version=VERSION,
        blendrun=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        job_id=_job_id(job.rows, model),
        model=model.record,
        hardware=job.cost.hardware.name,
        hardware_reason=job.cost.hardware.reason,
        shared_reads=job.cost.hardware.shared_reads,
        policy=wanted.policy,
        admission=order.admission,
        budget=budget,
        tp=job.cost.tp,
        dp=job.dp,
        cost=wanted.cost,
        counts=counts,
        times=times,
        settings=asdict(wanted),
        settings_from=dict(settings.origins),
        warnings=(*_warnings(job, counts), *model.notes),
        sources=(),
        ranks=tuple(
            PlannedRank(len(part.requests), part.compute_s, part.memory_s, part.predicted_s)
            for part in parts
        ),
        ranks_reason=ranks_reason,
        window=window,
        input_notes=job.rows.notes,
    )


def joined(plans: Sequence[Plan], names: Sequence[str]) -> Plan:
    """The plan of consecutive windows, which run one after the other.

    Args:
        names: where the plan of each window is kept, relative to this one.
    """
    ids = hashlib.sha256("".join(plan.job_id for plan in plans).encode())
    return replace(
        plans[0],
        job_id=ids.hexdigest()[:16],
        counts=reduce(add, (plan.counts for plan in plans)),
        times=reduce(add, (plan.times for plan in plans)),
        warnings=tuple(_joined_warnings(plans)),
        ranks=tuple(
            reduce(add, of_rank) for of_rank in zip(*(p.ranks for p in plans), strict=True)
        ),
        windows=tuple(names),
        window=None,
        input_notes=tuple(note for plan in plans for note in plan.input_notes),
    )


def _joined_warnings(plans: Sequence[Plan]) -> Iterator[str]:
    found = Counter(warning for plan in plans for warning in plan.warnings)
    for warning, times in found.most_common(_MOST_WARNINGS):
        yield warning if times == len(plans) else f"{warning} (in {count_of(times, 'window')})"
    if len(found) > _MOST_WARNINGS:
        yield f"{len(found) - _MOST_WARNINGS} more notes in the plans of the windows"


def _counts(job: PricedJob, order: Order) -> PlanCounts:
    tree = job.tree
    return PlanCounts(
        rows=job.rows.num_rows,
        requests=tree.num_requests,
        rejected=job.rows.rejected.num_rows,
        repeated_prompts=tree.num_requests - len(np.unique(content_node(tree))),
        prompt_tokens=tree.num_prompt_tokens,
        unique_prompt_tokens=tree.num_unique_tokens,
        computed_prompt_tokens=computed_prompt_tokens(
            order.tree, order.sequence, job.output_len, job.kv_capacity_tokens
        ),
        expected_output_tokens=int(job.output_len.sum(dtype=np.int64)),
        prefix_nodes=order.tree.num_nodes,
        kv_capacity_tokens=job.kv_capacity_tokens,
        lengths_from=_value_counts(job.lengths.origin_names()),
        rejected_by_code=_value_counts(job.rows.rejected["code"]),
    )


def _value_counts(column: pa.Array | pa.ChunkedArray) -> dict[str, int]:
    pairs = column.value_counts().to_pylist()
    return {pair["values"]: pair["counts"] for pair in sorted(pairs, key=lambda p: -p["counts"])}


def _warnings(job: PricedJob, counts: PlanCounts) -> Iterator[str]:
    if counts.rejected:
        yield f"{count_of(counts.rejected, 'row')} set aside: error rows in the output"
    yield from job.rows.notes
    if not counts.requests:
        yield "there is no request to run"
        return
    requests = job.rows.requests
    is_second = requests["sample"].to_numpy() == 1
    several = int((is_second & requests["score_start"].is_null().to_numpy()).sum())
    if several:
        yield f"several answers to {count_of(several, 'row')}: the outputs have a row for each"
    if job.everything_fits:
        yield "the KV of all requests fits in memory at once, so the order hardly matters"
    if counts.sharing_possible < 0.01:
        yield "the prompts share next to no prefixes"
    if not job.cost.hardware.overlaps:
        yield (
            "on this hardware compute and memory work do not overlap, "
            "so the gain is in sharing and full steps"
        )
    guessed = counts.lengths_from.get(PRIOR, 0)
    if 2 * guessed > counts.requests:
        yield (
            f"the output length of {count_of(guessed, 'request')} is a guess; "
            "an output_len column helps"
        )
    yield from _too_large(job)
    if not job.cost.hardware.calibrated:
        yield "times are estimates from data-sheet figures of the hardware"


def _too_large(job: PricedJob) -> Iterator[str]:
    """Requests that the planned hardware cannot hold; a run may have another KV memory."""
    max_tokens = job.rows.requests["max_tokens"].to_numpy()
    lengths = job.tree.prompt_len.astype(np.int64) + max_tokens
    capacity = job.cost.kv_capacity_tokens
    large = int((lengths > capacity).sum())
    if large:
        yield (
            f"{count_of(large, 'request')} with up to {lengths.max():,} tokens, max_tokens "
            f"included, where the KV memory of {job.cost.hardware.name} holds {capacity:,}: "
            "executed there, needs_more_memory"
        )


def _job_id(rows: Ingested, model: PlannedModel) -> str:
    """Hash of what the answers depend on, so that a run continues under another plan of the job."""
    digest = hashlib.sha256()
    digest.update((model.record.fingerprint or model.record.spec).encode())
    digest.update(str(rows.num_rows).encode())
    for name in ("row", "sample"):
        digest.update(rows.requests[name].to_numpy().tobytes())
    digest.update(as_bytes(rows.requests["content"]).data)
    return digest.hexdigest()[:16]
