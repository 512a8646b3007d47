"""`blendrun run`: plan, execute and report in one go."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from blendrun.cli import flags
from blendrun.cli.execute import run_plan
from blendrun.cli.output import stdout_may_close
from blendrun.cli.plan_table import print_plan
from blendrun.cli.progress import StageProgress
from blendrun.cli.ranks import RankFlags
from blendrun.cli.report import report
from blendrun.data.manifest import read_manifest
from blendrun.data.results import ResultJournal
from blendrun.schedule.continued_run import check_continues, keys_in
from blendrun.schedule.plan_record import Plan
from blendrun.schedule.planner import make_plan

_EXECUTE = (
    "dtype",
    "kv_dtype",
    "load_format",
    "device",
    "attention",
    "pod",
    "overlap",
    "graphs",
    "schedule",
    "kv_memory",
    "page_size",
    "chunk_size",
    "max_seqs",
    "prefix_cache",
    "shared_prefix_attention",
    "deterministic",
    "output_format",
    "output_part_size",
    "time_limit",
    "hang_limit",
    "retry_errors",
)


def run(
    prompts: flags.Prompts,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the plan, the run and its report.")
    ] = Path("blendrun-run"),
    config: flags.Config = None,
    model: flags.Model = None,
    hardware: flags.Hardware = None,
    policy: flags.PolicyFlag = None,
    budget: flags.Budget = None,
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
    engine: flags.Engine = None,
    dtype: flags.Dtype = None,
    kv_dtype: flags.KvDtype = None,
    load_format: flags.LoadFormat = None,
    device: flags.Device = None,
    attention: flags.Attention = None,
    pod: flags.Pod = None,
    overlap: flags.OverlapFlag = None,
    graphs: flags.GraphsFlag = None,
    schedule: flags.ScheduleFlag = None,
    kv_memory: flags.KvMemory = None,
    page_size: flags.PageSize = None,
    chunk_size: flags.ChunkSize = None,
    max_seqs: flags.MaxSeqs = None,
    prefix_cache: flags.PrefixCache = None,
    shared_prefix_attention: flags.SharedPrefixAttention = None,
    deterministic: flags.Deterministic = None,
    output_format: flags.OutputFormatFlag = None,
    output_part_size: flags.OutputPartSize = None,
    time_limit: flags.TimeLimit = None,
    hang_limit: flags.HangLimit = None,
    retry_errors: flags.RetryErrors = None,
    tp: flags.Tp = None,
    dp: flags.Dp = None,
    devices: flags.Devices = None,
    launcher: flags.LauncherFlag = None,
    ray_address: flags.RayAddress = None,
) -> None:
    """Plan, execute and report in one go; started again with the same flags, it continues."""
    given, begin_s = dict(locals()), time.monotonic()
    ranks = RankFlags.of(None, given.pop("launcher"), given.pop("ray_address"))
    execute_flags = {name: given.pop(name) for name in _EXECUTE}
    plan_flags = {k: v for k, v in given.items() if k not in ("prompts", "output", "config")}
    settings = flags.plan_settings(config, plan_flags | {"hardware": hardware or "this-cpu"})
    execute_flags["engine"] = settings.value.engine
    plan_path = output / "plan.json"
    chosen = flags.execute_settings(execute_flags)  # refuses unusable ones before planning

    def accept(plan: Plan, folders: Sequence[Path]) -> None:
        if read_manifest(output) is None:
            return
        with ResultJournal(output) as journal:
            manifest = read_manifest(output)
            if manifest is not None:
                check_continues(journal, manifest, chosen.identity(plan), keys_in(folders))

    with StageProgress() as progress:
        made = make_plan(prompts, settings, plan_path, progress, accept)
    with stdout_may_close():
        print_plan(made, plan_path)
    try:
        run_plan(plan_path, output, execute_flags, begin_s, ranks)
    finally:
        manifest = read_manifest(output)
        if manifest is not None and manifest.is_complete:
            report([output])
