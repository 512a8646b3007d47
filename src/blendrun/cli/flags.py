"""Flags that several commands share. A flag that is not given is None: the defaults stand in the
dataclasses of settings."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from blendrun.config import Resolved, read_toml, resolve
from blendrun.engine.settings import ExecuteSettings
from blendrun.errors import InputError
from blendrun.schedule.settings import AUTO, PlanSettings
from blendrun.units import parse_bytes, parse_seconds

_LONGEST_PATH = 255  # bytes


def _default(settings: type[Any], name: str) -> str:
    value = next(f.default for f in fields(settings) if f.name == name)
    return "" if value is None or value == () else f" (default: {value})"


def _plan(name: str, help_text: str, *decls: str, **more: Any) -> Any:
    return typer.Option(*decls, help=help_text + _default(PlanSettings, name), **more)


def _run(name: str, help_text: str, *decls: str, **more: Any) -> Any:
    return typer.Option(*decls, help=help_text + _default(ExecuteSettings, name), **more)


Prompts = Annotated[
    list[str], typer.Argument(help="Parquet or JSONL files, folders or glob patterns.")
]
Config = Annotated[
    Path | None, typer.Option(help="Job file (TOML) with any of these settings; flags win.")
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Hugging Face id, checkpoint folder, .gguf file; to plan only, a shape (.toml)."
    ),
]
Tokenizer = Annotated[
    str | None, typer.Option(help="Folder or id of a tokenizer, for a model shape.")
]
Hardware = Annotated[
    str | None, _plan("hardware", "Hardware profile: a name, a TOML file, or auto.")
]
PolicyFlag = Annotated[
    str | None,
    _plan("policy", "blend, blendserve, dfs, dfs-sets, arrival or random.", "--policy"),
]
Budget = Annotated[
    str | None,
    _plan("budget", "What a step's prefill is cut to: fixed tokens, or the job's ratio."),
]
Cost = Annotated[str | None, _plan("cost", "Cost model: product, or paper for its formulas.")]
Tp = Annotated[str | None, _plan("tp", "Tensor-parallel ranks, or auto.")]
Dp = Annotated[str | None, _plan("dp", "Data-parallel ranks, or auto.")]
RunDp = Annotated[
    int | None, typer.Option("--dp", help="Data-parallel ranks (default: the plan's).")
]
Devices = Annotated[
    int | None,
    _plan("devices", "Devices that --tp auto and --dp auto may use (default: this machine's)."),
]
LauncherFlag = Annotated[
    str | None,
    typer.Option("--launcher", help="local processes, or ray: on a Ray cluster (default: local)."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(help="HOST:PORT of the Ray cluster (default: $RAY_ADDRESS, or the one here)."),
]
Limit = Annotated[int | None, typer.Option(help="Only the first N rows.")]
Window = Annotated[
    int | None, typer.Option(help="Plan N rows at a time, for inputs larger than memory.")
]
Workers = Annotated[
    int | None,
    typer.Option(help="Processes that tokenize (default: one per CPU, for large inputs)."),
]
KeepSharing = Annotated[
    float | None, _plan("keep_sharing", "Share of prefix sharing that splitting must keep.")
]
LengthsFrom = Annotated[
    list[str] | None,
    typer.Option(help="Folder of an earlier run whose output lengths to expect; may be repeated."),
]
PriorOutputLen = Annotated[
    int | None, _plan("prior_output_len", "Tokens expected where only a larger max_tokens tells.")
]
PromptColumn = Annotated[str | None, typer.Option(help="Column with plain text prompts.")]
MessagesColumn = Annotated[str | None, typer.Option(help="Column with chats.")]
TokenIdsColumn = Annotated[str | None, typer.Option(help="Column with prompts as token ids.")]
IdColumn = Annotated[
    str | None, typer.Option(help="Column with ids of rows: told of rows set aside, and checked.")
]
MaxTokensColumn = Annotated[str | None, typer.Option(help="Column with max_tokens.")]
OutputLenColumn = Annotated[
    str | None, typer.Option(help="Column with expected output lengths in tokens.")
]
ScoreColumn = Annotated[
    str | None, typer.Option(help="Column with lists of continuations to score.")
]
InputFormat = Annotated[
    str | None,
    _plan("input_format", "auto, openai (lines of OpenAI's Batch API) or columns."),
]
Template = Annotated[
    str | None,
    typer.Option(help="Prompt made of columns: 'Summarise: {text}', or Jinja with {{ text }}."),
]
Strict = Annotated[
    bool | None, typer.Option("--strict", help="Refuse the job if one row cannot run.")
]
Truncate = Annotated[
    str | None,
    typer.Option(help="left or right: the end that a prompt too long for the context loses."),
]
BadUnicode = Annotated[
    str | None,
    _plan("bad_unicode", "error or replace: what half of a surrogate pair does to its row."),
]
MaxTokens = Annotated[int | None, _plan("max_tokens", "Longest answer of rows that do not say.")]
Temperature = Annotated[float | None, _plan("temperature", "0 is greedy.")]
TopP = Annotated[float | None, _plan("top_p", "Nucleus of the draw.")]
TopK = Annotated[int | None, _plan("top_k", "Draw among the k best; 0 is off.")]
MinP = Annotated[float | None, _plan("min_p", "Least probability, relative to the best.")]
Seed = Annotated[int | None, _plan("seed", "Seed of draws and of random order.")]
Stop = Annotated[list[str] | None, typer.Option(help="Stop string; may be given several times.")]
StopTokenIds = Annotated[
    list[int] | None,
    typer.Option("--stop-token-id", help="Token that ends an answer; may be given several times."),
]
RepetitionPenalty = Annotated[
    float | None,
    _plan("repetition_penalty", "Divides logits of tokens that prompt or answer has; 1 is off."),
]
PresencePenalty = Annotated[
    float | None, _plan("presence_penalty", "Taken off logits of tokens that the answer has.")
]
FrequencyPenalty = Annotated[
    float | None,
    _plan("frequency_penalty", "Taken off logits, for each time that the answer has the token."),
]
LogitBias = Annotated[
    str | None, typer.Option(help='Added to logits, by token id: {"42": -100}, as JSON.')
]
Logprobs = Annotated[
    int | None,
    typer.Option(help="Log-probabilities of the answer's tokens and of so many alternatives."),
]
PromptLogprobs = Annotated[int | None, typer.Option(help="Likewise of the prompt's tokens.")]
NumAnswers = Annotated[int | None, _plan("n", "Answers to each row.", "--n")]
ResponseFormat = Annotated[
    str | None, typer.Option(help="json_object, or OpenAI's response_format as JSON.")
]
JsonSchema = Annotated[
    str | None, typer.Option(help="Answers are JSON of this schema: JSON text, or a file.")
]
RegexFlag = Annotated[str | None, typer.Option("--regex", help="Answers match this expression.")]
Grammar = Annotated[
    str | None, typer.Option(help="Answers follow this grammar (Lark or GBNF): text, or a file.")
]
IgnoreEos = Annotated[
    bool | None, typer.Option("--ignore-eos", help="Go on to max_tokens whatever the model says.")
]
Engine = Annotated[
    str | None,
    _plan("engine", "What is to compute: native, or vllm (docs/vllm.md).", "--engine"),
]
RunEngine = Annotated[
    str | None,
    typer.Option(
        "--engine", help="What computes: native, or vllm (docs/vllm.md; default: as planned)."
    ),
]
RunPolicy = Annotated[
    str | None,
    typer.Option("--policy", help="Another order than the plan's (default: the plan's)."),
]
RunDir = Annotated[Path | None, typer.Option(help="Folder of the run (default: NAME.run).")]
ModelPath = Annotated[str | None, typer.Option(help="Where the plan's model lies, if it moved.")]
RunTp = Annotated[
    int | None, typer.Option("--tp", help="Tensor-parallel ranks (default: those of the plan).")
]
Dtype = Annotated[
    str | None, _run("dtype", "bfloat16, float16 (on a GPU) or float32, of weights and KV.")
]
KvDtype = Annotated[
    str | None, _run("kv_dtype", "auto: as --dtype; fp8_e4m3: KV in 8 bits, on GPUs.", "--kv-dtype")
]
LoadFormat = Annotated[
    str | None,
    _run("load_format", "safetensors; dummy: random weights, for timing.", "--load-format"),
]
Device = Annotated[str | None, _run("device", "auto, cpu or cuda; auto: the GPU, if there is one.")]
Attention = Annotated[str | None, _run("attention", "Of GPUs: auto, flashinfer, triton or torch.")]
Pod = Annotated[
    bool | None,
    typer.Option("--pod", help="Prefill and decode attention in one launch (FlashInfer)."),
]
OverlapFlag = Annotated[
    str | None,
    _run("overlap", "auto, on or off: steps in parts at the same time, on GPUs.", "--overlap"),
]
GraphsFlag = Annotated[
    str | None,
    _run("graphs", "auto, on or off: decode steps as CUDA graphs, on GPUs.", "--graphs"),
]
ScheduleFlag = Annotated[
    str | None,
    _run("schedule", "auto, async or sequential: steps launched ahead, on GPUs.", "--schedule"),
]
KvMemory = Annotated[
    str | None,
    typer.Option(
        help="KV memory of a rank, such as 4GiB (default: what is needed, at most 60 % of free)."
    ),
]
PageSize = Annotated[int | None, _run("page_size", "Tokens of a KV page.")]
ChunkSize = Annotated[int | None, _run("chunk_size", "Prefill tokens of a step at most.")]
MaxSeqs = Annotated[int | None, _run("max_seqs", "Requests running at once at most.")]
PrefixCache = Annotated[
    bool | None,
    typer.Option("--prefix-cache/--no-prefix-cache", help="Share prefixes (default: yes)."),
]
SharedPrefixAttention = Annotated[
    bool | None,
    typer.Option(
        "--shared-prefix-attention/--no-shared-prefix-attention",
        help="Read KV of a shared prefix once a step for all that share it (default: yes).",
    ),
]
Deterministic = Annotated[
    bool | None,
    typer.Option("--deterministic", help="No logit depends on what else runs, to the last bit."),
]
OutputFormatFlag = Annotated[
    str | None,
    _run("output_format", "parquet; jsonl or openai are written beside it.", "--output-format"),
]
OutputPartSize = Annotated[
    str | None,
    typer.Option(help="Outputs in parts of about this size, such as 512MiB (default: one file)."),
]
RetryErrors = Annotated[
    bool | None,
    typer.Option(
        "--retry-errors", help="Run rows again that ended as error rows; not those set aside."
    ),
]
TimeLimit = Annotated[
    str | None,
    typer.Option(help="Stop, with everything saved, before this time is over: 90s, 45m, 1h30m."),
]
HangLimit = Annotated[
    str | None,
    typer.Option(help="End a rank that has work and says nothing for this long, say 10m."),
]


def plan_settings(config: Path | None, flags: dict[str, Any]) -> Resolved[PlanSettings]:
    """Plan settings from a job file and flags.

    Raises:
        InputError: no model is named, or a setting is not usable.
    """
    table = read_toml(config) if config else {}
    if flags.get("logit_bias") is not None:
        flags = {**flags, "logit_bias": _json_object("--logit-bias", flags["logit_bias"])}
    if flags.get("model") is None and "model" not in table:
        raise InputError(
            "which model? --model is missing",
            "--model takes a Hugging Face id, a checkpoint folder, a .gguf file or a shape (.toml)",
        )
    flags = flags | {name: _number_or_auto(name, flags.get(name)) for name in ("tp", "dp")}
    for name in ("json_schema", "grammar"):
        if flags.get(name) is not None:
            flags = {**flags, name: _text_or_file(flags[name])}
    return resolve(PlanSettings, flags, table, str(config) if config else "flags")


def _number_or_auto(name: str, text: str | None) -> int | str | None:
    if text is None or text == AUTO:
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--{name} must be a number or auto, not {text!r}") from None


def _text_or_file(text: str) -> str:
    """What a flag says, or the file that it names does."""
    if len(text.encode()) > _LONGEST_PATH or not Path(text).is_file():
        return text
    return Path(text).read_text(encoding="utf-8")


def _json_object(flag: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InputError(f"{flag} must be JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{flag} must be a JSON object, not {text}")
    return value


def execute_settings(flags: dict[str, Any]) -> ExecuteSettings:
    """Execute settings from flags; sizes and limits come as text."""
    flags = dict(flags)
    for name in ("kv_memory", "output_part_size"):
        if flags.get(name) is not None:
            flags[name] = parse_bytes(flags[name])
    for name in ("time_limit", "hang_limit"):
        limit = flags.pop(name, None)
        if limit is not None:
            flags[f"{name}_s"] = parse_seconds(limit)
    return resolve(ExecuteSettings, flags, {}, "flags").value
