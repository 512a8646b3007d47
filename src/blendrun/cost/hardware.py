"""A machine's figures: arithmetic rate, memory bandwidth, memory, and how well they overlap.

Read from TOML, shipped in `configs/hardware` or the user's own. Data-sheet figures are an
estimate of what an engine reaches until someone measures the machine. Knows no models.
"""

import dataclasses
import math
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

from blendrun.config import from_table, read_toml, shipped_config, shipped_names
from blendrun.cost import machine
from blendrun.errors import InputError

_SHARED = (  # what ranks on one device divide among them, beside its tables
    "compute_flops",
    "memory_bandwidth",
    "memory_bytes",
    "attention_flops",
    "shared_attention_flops",
    "kv_memory_bytes",
)

_SPLIT_TABLE = ("tokens", "contexts", "parts", "memory_fracs", "gains")
_SPLIT_NAMES = ", ".join(f"split_{key}" for key in _SPLIT_TABLE)


@dataclasses.dataclass(frozen=True, slots=True)
class _PerCore:
    """The `[per_core]` table of a CPU profile: figures that grow with the number of cores."""

    compute_flops: float
    memory_bandwidth: float


@dataclasses.dataclass(frozen=True, slots=True)
class HardwareProfile:
    """Figures of one device: one GPU, or all usable cores of one CPU machine."""

    name: str
    kind: Literal["cpu", "cuda"]
    compute_flops: float  # FLOP/s, dense bf16 matrix products
    memory_bandwidth: float  # byte/s
    memory_bytes: float
    overlap_exponent: float  # q of the norm; 1 = no overlap, about 4 on GPUs, inf = perfect
    overlap: bool = True  # False: compute and KV reads at once gain nothing; then q is 1
    shared_reads: bool = False  # attention reads a prefix that requests share once a step for all
    compute_efficiency: float = 1.0  # share of compute_flops that an engine reaches
    bandwidth_efficiency: float = 1.0
    memory_frac: float = 0.95  # share of memory_bytes for weights and KV pages together
    kv_memory_bytes: float | None = None  # for KV pages; None: what weights leave of memory_frac
    weight_floor_exponent: float = math.inf  # norm of a step's GEMMs and weight reads; inf = max
    interconnect_bandwidth: float = math.inf  # byte/s to the other ranks, each way; inf = free
    collective_latency_s: float = 0.0  # of one all-reduce, beside the time of its bytes
    step_overhead_s: float = 0.0  # fixed cost of an engine step
    gemm_tile: int = 1  # tokens; a GEMM costs as much as one rounded up to this
    chunk_limit: int = 2048  # prompt tokens that one step prefills at most
    calibrated: bool = False  # False: an estimate from data sheets
    # these only where a machine was measured, with products of one model's shapes
    model: str = ""
    processor: str = ""
    cores: int | None = None
    gemm_tokens: tuple[int, ...] = ()  # step sizes, ascending, and …
    gemm_flops: tuple[float, ...] = ()  # … FLOP/s of a step's products there, weight reads included
    head_flops: tuple[float, ...] = ()  # of the output head, at the first of these sizes
    attention_flops: float | None = None  # of causal prefill attention; None: as in products
    # of decodes over a prefix that others have read; None: as with reads of their own, not counted
    shared_attention_flops: float | None = None
    token_overhead_s: float = 0.0  # of a step's token, beside products and attention, …
    output_overhead_s: float = 0.0  # … and of an output token, beside its head
    unclear: tuple[str, ...] = ()  # overheads that the measured steps do not tell from 0
    # steps that were measured whole and in parts: tokens, tokens of context that decodes read, …
    split_tokens: tuple[int, ...] = ()
    split_contexts: tuple[int, ...] = ()
    split_parts: tuple[int, ...] = ()  # … the best number of parts, …
    split_memory_fracs: tuple[float, ...] = ()  # … and share of SMs for decode attention; 0: all
    split_gains: tuple[float, ...] = ()  # times as fast as whole
    device_names: tuple[str, ...] = ()  # as the driver lists them, for `auto`
    sources: dict[str, str] = dataclasses.field(default_factory=dict)  # of each figure
    reason: str = ""  # why this profile was taken

    def __post_init__(self) -> None:
        for key in (
            "compute_flops",
            "memory_bandwidth",
            "memory_bytes",
            "gemm_tile",
            "chunk_limit",
        ):
            if not 0 < getattr(self, key) < math.inf:
                raise InputError(f"hardware profile {self.name}: {key} must be above 0")
        for key in ("compute_efficiency", "bandwidth_efficiency", "memory_frac"):
            if not 0 < getattr(self, key) <= 1:
                raise InputError(f"hardware profile {self.name}: {key} must be in (0, 1]")
        if not self.overlap and self.overlap_exponent != 1:
            raise InputError(
                f"hardware profile {self.name}: overlap_exponent must be 1 where overlap is false"
            )
        for key in ("overlap_exponent", "weight_floor_exponent"):
            if not getattr(self, key) >= 1:  # nan is not, either
                raise InputError(f"hardware profile {self.name}: {key} must be 1 or more")
        for key in (
            "step_overhead_s",
            "token_overhead_s",
            "output_overhead_s",
            "collective_latency_s",
        ):
            if not 0 <= getattr(self, key) < math.inf:
                raise InputError(f"hardware profile {self.name}: {key} must be 0 or more")
        if not self.interconnect_bandwidth > 0:
            raise InputError(
                f"hardware profile {self.name}: interconnect_bandwidth must be above 0"
            )
        for key in ("attention_flops", "shared_attention_flops", "kv_memory_bytes"):
            value = getattr(self, key)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"hardware profile {self.name}: {key} must be above 0")
        rising = all(a < b for a, b in pairwise((0, *self.gemm_tokens)))
        usable = all(0 < rate < math.inf for rate in (*self.gemm_flops, *self.head_flops))
        if not rising or not usable or len(self.gemm_tokens) != len(self.gemm_flops):
            raise InputError(
                f"hardware profile {self.name}: gemm_tokens must rise, with a rate in gemm_flops "
                "for each"
            )
        if len(self.head_flops) > len(self.gemm_tokens):
            raise InputError(f"hardware profile {self.name}: head_flops has too many rates")

        table = [getattr(self, f"split_{key}") for key in _SPLIT_TABLE]
        if len({len(column) for column in table}) > 1:
            raise InputError(f"hardware profile {self.name}: {_SPLIT_NAMES} must be equally long")
        if not all(0 <= frac < 1 for frac in self.split_memory_fracs):
            raise InputError(f"hardware profile {self.name}: split_memory_fracs must be in [0, 1)")

    @classmethod
    def load(cls, spec: str) -> Self:
        """Profile by path of a TOML file, by shipped name, or for this machine.

        `auto` takes the first GPU, else the CPU; `this-cpu` the CPU: as it was measured, or the
        shipped estimate.

        Raises:
            InputError: no such profile, or a file with unknown, missing or unusable entries.
        """
        if spec == "auto":
            return cls._of_this_machine()
        if spec == "this-cpu":
            return cls._of_this_cpu("asked for by name: this-cpu")
        path = Path(spec)
        if path.is_file():
            return cls._from_file(path, f"read from {spec}")
        shipped = shipped_config("hardware", path.name.removesuffix(".toml"))
        if shipped is None or path.parent.as_posix() not in (".", "configs/hardware"):
            names = ", ".join(["auto", "this-cpu", *shipped_names("hardware")])
            raise InputError(f"no hardware profile {spec!r}", f"shipped: {names}")
        return cls._from_file(shipped, f"asked for by name: {spec}")

    def to_table(self) -> dict[str, Any]:
        """All entries but those left at an infinite default: JSON has no inf."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {
            key: value
            for key, value in dataclasses.asdict(self).items()
            if value != math.inf or defaults[key] != math.inf
        }

    def shared_by(self, ranks: int) -> Self:
        """The part of each of `ranks` that share this device; fixed costs stay what they are."""
        if ranks == 1:
            return self
        parts = {
            name: getattr(self, name) / ranks for name in _SHARED if getattr(self, name) is not None
        }
        tables: dict[str, Any] = {
            name: tuple(rate / ranks for rate in getattr(self, name))
            for name in ("gemm_flops", "head_flops")
        }
        return dataclasses.replace(self, **parts, **tables)

    @property
    def overlaps(self) -> bool:
        """Whether compute and KV reads at once are faster than one after the other."""
        return self.overlap and self.overlap_exponent > 1

    @property
    def effective_flops(self) -> float:
        """FLOP/s that an engine reaches."""
        return self.compute_flops * self.compute_efficiency

    @property
    def effective_bandwidth(self) -> float:
        """byte/s that an engine reaches."""
        return self.memory_bandwidth * self.bandwidth_efficiency

    @classmethod
    def of_gpu(cls, gpu: str) -> Self | None:
        """As GPUs of this name were measured here, or the shipped profile; None: neither is."""
        measured = measured_gpu_path(gpu)
        if measured.is_file():
            return cls._from_file(measured, f"auto: {gpu}, as it was measured here")
        for name in shipped_names("hardware"):
            path = shipped_config("hardware", name)
            if path and gpu in read_toml(path).get("device_names", ()):
                return cls._from_file(path, f"auto: the first GPU here is {gpu}")
        return None

    @classmethod
    def _of_this_machine(cls) -> Self:
        gpus = machine.gpu_names()
        profile = cls.of_gpu(gpus[0]) if gpus else None
        if profile is not None:
            return profile
        found = f"no profile for {gpus[0]}" if gpus else "no NVIDIA GPU found"
        return cls._of_this_cpu(f"auto: {found}, {machine.usable_cores()} usable CPU cores")

    @classmethod
    def _of_this_cpu(cls, reason: str) -> Self:
        measured = measured_profile_path()
        if measured.is_file():
            profile = cls._from_file(measured, "")
            return dataclasses.replace(profile, reason=f"{reason}, measured with {profile.model}")
        path = shipped_config("hardware", "cpu")
        if path is None:
            raise InputError("this installation has no hardware profiles")
        return cls._from_file(path, reason)

    @classmethod
    def _from_file(cls, path: Path, reason: str) -> Self:
        table: dict[str, Any] = {"name": path.stem, **read_toml(path)}
        if "per_core" in table:
            per_core = from_table(_PerCore, table.pop("per_core"), f"{path}: per_core")
            cores = machine.usable_cores()
            table["compute_flops"] = per_core.compute_flops * cores
            table["memory_bandwidth"] = per_core.memory_bandwidth * cores
        if table.get("kind") == "cpu":
            table.setdefault("memory_bytes", machine.available_memory_bytes())
        return from_table(cls, {**table, "reason": reason}, str(path))


def measured_profile_path() -> Path:
    """Where the measured profile of this CPU, with as many cores, is kept."""
    return _measured_path(f"{machine.processor_name()}-{machine.usable_cores()}-cores")


def measured_gpu_path(name: str) -> Path:
    """Where the measured profile of GPUs that the driver lists under `name` is kept."""
    return _measured_path(name)


def _measured_path(name: str) -> Path:
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return home / "blendrun" / "hardware" / f"{plain}.toml"
