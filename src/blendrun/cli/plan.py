"""`blendrun plan`."""

from pathlib import Path
from typing import Annotated

import typer

from blendrun.cli import flags
from blendrun.cli.output import stdout_may_close
from blendrun.cli.plan_table import print_plan
from blendrun.cli.progress import StageProgress
from blendrun.schedule.planner import make_plan


def plan(
    prompts: flags.Prompts,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The plan; its side files go beside it.")
    ] = Path("plan.json"),
    config: flags.Config = None,
    model: flags.Model = None,
    tokenizer: flags.Tokenizer = None,
    hardware: flags.Hardware = None,
    policy: flags.PolicyFlag = None,
    budget: flags.Budget = None,
    cost: flags.Cost = None,
    tp: flags.Tp = None,
    dp: flags.Dp = None,
    limit: flags.Limit = None,
    keep_sharing: flags.KeepSharing = None,
    prior_output_len: flags.PriorOutputLen = None,
    prompt_column: flags.PromptColumn = None,
    messages_column: flags.MessagesColumn = None,
    token_ids_column: flags.TokenIdsColumn = None,
    max_tokens_column: flags.MaxTokensColumn = None,
    output_len_column: flags.OutputLenColumn = None,
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
) -> None:
    """Read the prompts and choose the order: prefix tree, schedule, and a time estimate."""
    given = dict(locals())
    settings = flags.plan_settings(
        config, {k: v for k, v in given.items() if k not in ("prompts", "output", "config")}
    )
    with StageProgress() as progress:
        made = make_plan(prompts, settings, output, progress)
    with stdout_may_close():
        print_plan(made, output)
