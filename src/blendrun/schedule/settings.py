"""What a person can set when planning. Defaults stand here and nowhere else."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from blendrun.data.columns import ColumnNames
from blendrun.data.input_options import BadUnicode, InputFormat, InputOptions, Truncate
from blendrun.data.model_files import Engine
from blendrun.data.param_kinds import to_bias
from blendrun.data.sampling import SamplingParams
from blendrun.data.structures import STRUCTURE_COLUMNS, default_structure
from blendrun.errors import InputError

Auto = Literal["auto"]
AUTO: Auto = "auto"
Policy = Literal["blend", "blendserve", "dfs", "dfs-sets", "arrival", "random"]
Budget = Literal["auto", "fixed", "ratio"]


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Settings of `blendrun plan`; also the keys of a job file."""

    model: str
    tokenizer: str | None = None  # folder or id; only for model shapes that come without one
    engine: Engine = "native"  # that is to execute the plan; vllm: of models that only it runs, too
    hardware: str = "auto"
    policy: Policy = "blend"
    budget: Budget = "auto"
    cost: Literal["product", "paper"] = "product"
    tp: int | Auto = 1
    dp: int | Auto = 1
    devices: int | None = None  # that an automatic choice may use; None: those of this machine
    limit: int | None = None  # first N rows
    window: int | None = None  # rows that are planned at once; None: all
    workers: int | None = None  # processes that tokenize; None: one per CPU, for large inputs
    keep_sharing: float = 0.99
    lengths_from: tuple[str, ...] = ()  # folders of earlier runs
    prior_output_len: int = 256  # tokens expected where max_tokens allows more and nothing tells
    prompt_column: str | None = None  # None: the names of `ColumnNames`, where they exist
    messages_column: str | None = None
    token_ids_column: str | None = None
    id_column: str | None = None
    max_tokens_column: str | None = None
    output_len_column: str | None = None
    score_column: str | None = None
    input_format: InputFormat = "auto"
    template: str | None = None  # makes prompts from columns
    strict: bool = False  # refuse the job for one bad row
    truncate: Truncate | None = None
    bad_unicode: BadUnicode = "error"
    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[str, float] = field(default_factory=dict)  # by token id
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    response_format: Any = None  # the next four: shapes as in a row's columns, one of them at most
    json_schema: Any = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        for name in ("tp", "dp", "devices", "prior_output_len", "limit", "window", "workers"):
            value = getattr(self, name)
            if value is not None and value != AUTO and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}")
        if not 0 <= self.keep_sharing <= 1:
            raise InputError(f"keep_sharing must be between 0 and 1, not {self.keep_sharing}")
        self.sampling.validate()

    @property
    def sampling(self) -> SamplingParams:
        given: dict[str, Any] = {
            f.name: getattr(self, f.name, None) for f in fields(SamplingParams)
        }
        given["structure"] = default_structure(
            {name: getattr(self, name) for name in STRUCTURE_COLUMNS}
        )
        given["logit_bias"] = to_bias(self.logit_bias)
        if given["logit_bias"] is None:
            raise InputError(f"logit_bias must give token ids numbers, not {self.logit_bias!r}")
        return SamplingParams(**given)

    @property
    def columns(self) -> ColumnNames:
        return ColumnNames.from_flags(
            prompt=self.prompt_column,
            messages=self.messages_column,
            token_ids=self.token_ids_column,
            id=self.id_column,
            max_tokens=self.max_tokens_column,
            output_len=self.output_len_column,
            score=self.score_column,
        )

    @property
    def input_options(self) -> InputOptions:
        return InputOptions(
            self.input_format,
            self.template,
            self.strict,
            self.truncate,
            self.bad_unicode,
            self.model,
        )
