"""What a person can set when executing a plan. Defaults stand here and nowhere else."""

from dataclasses import dataclass
from typing import Any, Literal

from blendrun.data.exports import OutputFormat
from blendrun.data.model_files import Engine, ModelFiles
from blendrun.errors import InputError
from blendrun.schedule.plan_record import Plan


@dataclass(frozen=True, slots=True)
class ExecuteSettings:
    """Settings of `blendrun execute`."""

    engine: Engine = "native"  # what computes
    policy: str | None = None  # the order in which requests run; None: that of the plan
    model: str | None = None  # where the plan's model lies now, if it moved
    tp: int | None = None  # tensor-parallel ranks; None: as many as the plan says
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"  # of weights, and of KV
    kv_dtype: Literal["auto", "fp8_e4m3"] = "auto"  # of KV; auto: that of the weights
    load_format: Literal["safetensors", "dummy"] = "safetensors"  # dummy: random, without files
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: the GPU, where torch sees one
    attention: Literal["auto", "flashinfer", "triton", "torch"] = "auto"
    pod: bool = False  # prefill and decode attention of a step in one launch (POD-Attention)
    # of a step's parts on a GPU; auto: where its hardware profile says that it gains
    overlap: Literal["auto", "on", "off"] = "auto"
    # of decode-only steps on a GPU, captured once and replayed; auto: where they can be
    graphs: Literal["auto", "on", "off"] = "auto"
    # async: steps are launched before the tokens of those before are there; auto: so on a GPU
    schedule: Literal["auto", "async", "sequential"] = "auto"
    # bytes of each rank; None: what the job needs, all ranks at most 60 % of free memory
    kv_memory: int | None = None
    page_size: int = 16  # tokens
    chunk_size: int = 1024  # prefill tokens in a step at most
    max_seqs: int = 512  # requests running at once at most
    prefix_cache: bool = True
    shared_prefix_attention: bool = True  # of what the prefix cache shares
    deterministic: bool = False  # no logit depends on what else runs, to the last bit
    ignore_eos: bool = False  # in addition to the rows that the plan says it of
    output_format: OutputFormat = "parquet"  # of what is written beside outputs.parquet
    output_part_size: int | None = None  # bytes; outputs in parts of about that size, not one file
    retry_errors: bool = False  # run again what the engine answered with an error row
    flush_interval_s: float = 1.0  # finished rows are safe on disk after this long
    unfinished_interval_s: float = 30.0  # and so is what unfinished ones have after this long
    log_interval_s: float = 10.0
    # a rank that has work and says nothing for so long is ended, and started again
    hang_limit_s: float = 300.0
    time_limit_s: float | None = None  # of the whole command; it stops in time to save

    def __post_init__(self) -> None:
        for name in ("tp", "page_size", "chunk_size", "max_seqs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}")
        for name in ("flush_interval_s", "unfinished_interval_s", "log_interval_s"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not self.hang_limit_s > 0:
            raise InputError(f"hang_limit_s must be above 0, not {self.hang_limit_s}")
        if self.output_part_size is not None and self.output_part_size < 1:
            raise InputError(f"output_part_size must be at least 1, not {self.output_part_size}")
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise InputError(f"time_limit_s must be above 0, not {self.time_limit_s}")

    @property
    def shares_reads(self) -> bool:
        """Whether attention reads a shared prefix once for all: rounding then depends on who."""
        return self.prefix_cache and self.shared_prefix_attention and not self.deterministic

    def weights_identity(self, files: ModelFiles) -> str:
        """What tells the weights of a run from others."""
        return "dummy" if self.load_format == "dummy" else files.weights_fingerprint()

    def identity(self, plan: Plan) -> dict[str, Any]:
        """What the answers of a run of `plan` depend on."""
        identity = {
            "job_id": plan.job_id,
            "model": plan.model.fingerprint,
            "seed": plan.settings["seed"],
            "dtype": self.dtype,
            "kv_dtype": self.kv_dtype,
            "ignore_eos": self.ignore_eos,
            "deterministic": self.deterministic,
            "engine": self.engine,
        }
        if self.load_format != "safetensors":
            identity["load_format"] = self.load_format
        if self.deterministic:  # ranks add up in parts, which rounds otherwise
            identity["tp"] = self.tp or plan.tp
        return identity
