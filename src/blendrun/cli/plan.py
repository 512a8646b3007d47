"""`blendrun plan`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from blendrun.cli import flags
from blendrun.cli.execute import default_run_dir, engine_run
from blendrun.cli.output import stdout_may_close
from blendrun.cli.plan_table import print_plan
from blendrun.cli.progress import StageProgress
from blendrun.config import Resolved
from blendrun.errors import InputError
from blendrun.schedule.plan_record import Plan
from blendrun.schedule.planner import make_plan, plan_again
from blendrun.schedule.settings import PlanSettings


def plan(
    prompts: flags.Prompts,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The plan; its side files go beside it.")
    ] = Path("plan.json"),
    config: flags.Config = None,
    model: flags.Model = None,
    tokenizer: flags.Tokenizer = None,
    engine: flags.Engine = None,
    hardware: flags.Hardware = None,
    policy: flags.PolicyFlag = None,
    budget: flags.Budget = None,
    cost: flags.Cost = None,
    tp: flags.Tp = None,
    dp: flags.Dp = None,
    devices: flags.Devices = None,
    limit: flags.Limit = None,
    window: flags.Window = None,
    workers: flags.Workers = None,
    keep_sharing: flags.KeepSharing = None,
    lengths_from: flags.LengthsFrom = None,
    prior_output_len: flags.PriorOutputLen = None,
    prompt_column: flags.PromptColumn = None,
    messages_column: flags.MessagesColumn = None,
    token_ids_column: flags.TokenIdsColumn = None,
    id_column: flags.IdColumn = None,
    max_tokens_column: flags.MaxTokensColumn = None,
    output_len_column: flags.OutputLenColumn = None,
    score_column: flags.ScoreColumn = None,
    input_format: flags.InputFormat = None,
    template: flags.Template = None,
    strict: flags.Strict = None,
    truncate: flags.Truncate = None,
    bad_unicode: flags.BadUnicode = None,
    max_tokens: flags.MaxTokens = None,
    temperature: flags.Temperature = None,
    top_p: flags.TopP = None,
    top_k: flags.TopK = None,
    min_p: flags.MinP = None,
    seed: flags.Seed = None,
    stop: flags.Stop = None,
    stop_token_ids: flags.StopTokenIds = None,
    repetition_penalty: flags.RepetitionPenalty = None,
    presence_penalty: flags.PresencePenalty = None,
    frequency_penalty: flags.FrequencyPenalty = None,
    logit_bias: flags.LogitBias = None,
    logprobs: flags.Logprobs = None,
    prompt_logprobs: flags.PromptLogprobs = None,
    n: flags.NumAnswers = None,
    response_format: flags.ResponseFormat = None,
    json_schema: flags.JsonSchema = None,
    regex: flags.RegexFlag = None,
    grammar: flags.Grammar = None,
    ignore_eos: flags.IgnoreEos = None,
    warmup: Annotated[
        bool,
        typer.Option(
            "--warmup",
            help="Answer a sample of each subtree now, and plan with its output lengths.",
        ),
    ] = False,
    run_dir: flags.RunDir = None,
    dtype: flags.Dtype = None,
    kv_memory: flags.KvMemory = None,
) -> None:
    """Read the prompts and choose the order: prefix tree, schedule, and a time estimate."""
    given = dict(locals())
    for name in ("prompts", "output", "config", "warmup", "run_dir"):
        given.pop(name)
    execute_flags = {name: given.pop(name) for name in ("dtype", "kv_memory")}
    settings = flags.plan_settings(config, given)
    if warmup and settings.value.window is not None:
        raise InputError("--warmup does not go with --window", "leave out one of them")
    if warmup and settings.value.engine == "vllm":
        raise InputError("--warmup does not go with --engine vllm", "leave out one of them")
    with StageProgress() as progress:
        made = make_plan(prompts, settings, output, progress)
    if warmup:
        made = _warm_up(output, run_dir or default_run_dir(output), settings, execute_flags)
    with stdout_may_close():
        print_plan(made, output)


def _warm_up(
    output: Path, run_dir: Path, settings: Resolved[PlanSettings], execute_flags: dict[str, Any]
) -> Plan:
    """Answer the sample, which stays part of the run in `run_dir`, and plan anew."""
    engine = flags.execute_settings(execute_flags)
    with engine_run(run_dir, engine) as events:
        from blendrun.engine.execute import execute_sample
        from blendrun.launch.tensor_group import load_model

        execute_sample(output, run_dir, engine, events, load_model)
    runs = (*settings.value.lengths_from, str(run_dir))
    with StageProgress() as progress:
        wanted = Resolved(replace(settings.value, lengths_from=runs), settings.origins)
        return plan_again(output, wanted, progress)
