"""What a plan says of itself: the contents of `plan.json`. Knows no files."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from blendrun.data.model_files import Engine

FORMAT = "blendrun-plan"
VERSION = 5


@dataclass(frozen=True, slots=True)
class PlanModel:
    spec: str  # as `--model` takes it; a local path is absolute
    name: str
    fingerprint: str  # of config and tokenizer; empty for a bare shape, which cannot be executed
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanCounts:
    rows: int
    requests: int
    rejected: int
    repeated_prompts: int  # requests whose prompt another, earlier one has too
    prompt_tokens: int
    unique_prompt_tokens: int  # before splitting
    computed_prompt_tokens: int  # expected in the planned order
    expected_output_tokens: int
    prefix_nodes: int
    kv_capacity_tokens: int  # of the planned hardware
    lengths_from: Mapping[str, int]  # requests by origin of their expected output length
    rejected_by_code: Mapping[str, int]

    def __add__(self, other: "PlanCounts") -> "PlanCounts":
        """Counts of two windows of a job, which run one after the other on the same hardware."""
        mine, others = _values(self), _values(other)
        total = {name: _added(value, others[name]) for name, value in mine.items()}
        return PlanCounts(**total | {"kv_capacity_tokens": self.kv_capacity_tokens})

    @property
    def sharing_possible(self) -> float:
        return _saved_frac(self.prompt_tokens, self.unique_prompt_tokens)

    @property
    def sharing_kept(self) -> float:
        return _saved_frac(self.prompt_tokens, self.computed_prompt_tokens)


@dataclass(frozen=True, slots=True)
class PlanTimes:
    """Seconds on the planned hardware; formulas in docs/cost-model.md."""

    compute_s: float  # T_comp, nothing shared
    shared_compute_s: float  # with every shared prefix computed once
    memory_s: float  # T_mem
    density: float | None  # shared compute over memory; None without KV reads
    decode_compute_s: float  # part of both of the above
    ideal_s: float
    practical_s: float
    once_memory_s: float  # the least where each step reads a shared prefix once for all
    once_practical_s: float  # the practical optimum with it
    predicted_s: float
    predicted_low_s: float
    predicted_high_s: float

    def __add__(self, other: "PlanTimes") -> "PlanTimes":
        """Times of two windows, one after the other."""
        mine, others = _values(self), _values(other)
        total = {name: value + others[name] for name, value in mine.items() if name != "density"}
        read_s = total["memory_s"]
        return PlanTimes(density=total["shared_compute_s"] / read_s if read_s else None, **total)


@dataclass(frozen=True, slots=True)
class PlannedRank:
    """One of several data-parallel ranks; seconds with the prefixes that others compute, too."""

    requests: int
    compute_s: float
    memory_s: float
    predicted_s: float  # compute and KV reads at the machine's own overlap, nothing else

    def __add__(self, other: "PlannedRank") -> "PlannedRank":
        """What the rank does in two windows."""
        mine, others = _values(self), _values(other)
        return PlannedRank(**{name: value + others[name] for name, value in mine.items()})


@dataclass(frozen=True, slots=True)
class Plan:
    format: str
    version: int
    blendrun: str  # version that wrote it
    created: str  # ISO 8601, UTC
    job_id: str  # hash of inputs, model and sampling: what the answers depend on
    model: PlanModel
    hardware: str
    hardware_reason: str
    shared_reads: bool  # its attention reads a shared prefix once a step for all
    policy: str
    admission: str  # how the batcher takes requests: one list, two-ended, two lists
    budget: str  # of prefill in a step: fixed, or the ratio of compute to KV reads
    tp: int
    dp: int
    cost: str
    counts: PlanCounts
    times: PlanTimes
    settings: Mapping[str, Any]
    settings_from: Mapping[str, str]  # flag, file or default
    warnings: tuple[str, ...]
    sources: tuple[dict[str, Any], ...]
    ranks: tuple[PlannedRank, ...] = ()  # where there are several
    windows: tuple[str, ...] = ()  # plans of consecutive rows, relative to this one
    ranks_reason: str = ""  # why so many, where they were chosen automatically
    window: int | None = None  # which one of a larger plan this is
    input_notes: tuple[str, ...] = ()  # those of `warnings` that are about rows as they were read

    @property
    def engine(self) -> Engine:
        """What is to execute it."""
        return "vllm" if self.settings.get("engine") == "vllm" else "native"


def _values(record: Any) -> dict[str, Any]:
    """Fields of a dataclass and their values, not copied."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _added(one: Any, other: Any) -> Any:
    if isinstance(one, Mapping):
        return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}
    return one + other


def _saved_frac(total: int, computed: int) -> float:
    return 1 - computed / total if total else 0.0
