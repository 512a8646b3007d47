"""The program as a person meets it: words in, text and an exit code out."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from blendrun import __version__
from cli_words import ROWS, Blendrun, Said
from tiny_jobs import SHAPE, write_rows


def plain(text: str) -> str:
    """Without the escape codes and line breaks of a terminal."""
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m", "", text))


def assert_refused(said: Said, *parts: str, hint: str | None = "hint: ") -> None:
    assert said.code == 2
    for part in parts:
        assert part in said.err
    assert "Traceback" not in said.out + said.err
    if hint is not None:
        assert hint in said.err


# --- what it says of itself ---


def test_help_names_the_commands(blendrun: Blendrun):
    said = blendrun("--help")
    assert said.code == 0
    for command in ("plan", "inspect", "execute", "report", "run", "synth"):
        assert command in said.out


@pytest.mark.parametrize("command", ["plan", "inspect", "execute", "report", "run", "synth"])
def test_help_of_a_command_says_what_it_does(command: str, blendrun: Blendrun):
    said = blendrun(command, "--help")
    assert said.code == 0
    assert "Usage" in said.out


def test_help_shows_the_defaults_of_the_settings(blendrun: Blendrun):
    text = plain(blendrun("execute", "--help").out)
    assert "default: bfloat16" in text
    assert "default: 512" in text
    assert "default: blend" in plain(blendrun("plan", "--help").out)


def test_version(blendrun: Blendrun):
    assert blendrun("--version") == (0, f"blendrun {__version__}\n", "")


def test_an_unknown_command_or_flag_is_a_usage_error(blendrun: Blendrun):
    assert blendrun("plam").code == 2
    said = blendrun("plan", "tokens.jsonl", "--no-such-flag")
    assert said.code == 2
    assert "--no-such-flag" in plain(said.err)


# --- plan ---


def plan_tokens(blendrun: Blendrun, *words: object) -> Said:
    return blendrun(
        "plan", "tokens.jsonl", "-o", "plan.json", "--model", SHAPE, "--hardware", "h200", *words
    )


def test_plan_tells_what_it_found_and_where_the_plan_is(blendrun: Blendrun, tmp_path: Path):
    said = plan_tokens(blendrun)
    assert (said.code, said.err) == (0, "")
    assert "llama-3.1-8b on h200, policy blend" in said.out
    assert re.search(r"requests +3 +of 3 rows", said.out)
    assert said.out.splitlines()[-1] == "plan: plan.json"
    assert (tmp_path / "plan.json").is_file()


def test_parameters_of_rows_have_flags(blendrun: Blendrun, tmp_path: Path):
    given = {
        "--stop-token-id": 7,
        "--repetition-penalty": 1.5,
        "--presence-penalty": -1,
        "--frequency-penalty": 2,
        "--logit-bias": '{"42": -100}',
        "--logprobs": 0,
        "--prompt-logprobs": 3,
        "--n": 2,
    }
    words = [word for pair in given.items() for word in pair]
    said = plan_tokens(blendrun, *words)
    assert said.code == 0
    assert re.search(r"requests +6 +of 3 rows", said.out)
    assert "note: several answers to 3 rows" in said.out
    columns = pq.read_table(tmp_path / "plan.data" / "requests.parquet").to_pylist()[0]
    assert columns["stop_token_ids"] == [7]
    assert columns["repetition_penalty"] == 1.5
    assert (columns["presence_penalty"], columns["frequency_penalty"]) == (-1, 2)
    assert columns["logit_bias"] == [(42, -100)]
    assert (columns["logprobs"], columns["prompt_logprobs"]) == (0, 3)


@pytest.mark.parametrize(
    ("flag", "value", "kind"),
    [
        ("--json-schema", '{"type": "object"}', "json_schema"),
        ("--json-schema", "schema.json", "json_schema"),
        ("--response-format", "json_object", "json_schema"),
        ("--regex", "a|b", "regex"),
        ("--grammar", "rules.lark", "grammar"),
    ],
)
def test_what_answers_must_look_like_has_flags(
    flag: str, value: str, kind: str, blendrun: Blendrun, tmp_path: Path
):
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    (tmp_path / "rules.lark").write_text("start: /a+/")
    assert plan_tokens(blendrun, flag, value).code == 0
    column = pq.read_table(tmp_path / "plan.data" / "requests.parquet")["structure"].to_pylist()
    path = tmp_path / value
    text = path.read_text() if path.is_file() else value
    text = '{"type": "object"}' if value == "json_object" else text
    assert column == [{"kind": kind, "text": text}] * 3


def test_parameters_can_stand_in_a_job_file(blendrun: Blendrun, tmp_path: Path):
    (tmp_path / "job.toml").write_text(
        'stop_token_ids = [7]\nlogprobs = 2\nlogit_bias = {"42" = -1}\n'
        'response_format = {type = "json_object"}\n'
    )
    assert plan_tokens(blendrun, "--config", "job.toml").code == 0
    (row, *_) = pq.read_table(tmp_path / "plan.data" / "requests.parquet").to_pylist()
    assert (row["stop_token_ids"], row["logprobs"]) == ([7], 2)
    assert row["logit_bias"] == [(42, -1)]
    assert row["structure"] == {"kind": "json_schema", "text": '{"type": "object"}'}


def test_plan_without_a_model_is_refused(blendrun: Blendrun):
    assert_refused(blendrun("plan", "tokens.jsonl"), "which model? --model is missing")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (
            ["--policy", "fastest"],
            "policy must be one of blend, blendserve, dfs, dfs-sets, arrival, random",
        ),
        (["--cost", "free"], "cost must be one of product, paper"),
        (["--limit", "0"], "limit must be at least 1"),
        (["--keep-sharing", "1.5"], "keep_sharing must be between 0 and 1"),
        (["--max-tokens", "-1"], "max_tokens must be 0 or above"),
        (["--repetition-penalty", "0"], "repetition_penalty must be above 0"),
        (["--logit-bias", "{"], "--logit-bias must be JSON"),
        (["--logit-bias", "[1]"], "--logit-bias must be a JSON object"),
        (["--logit-bias", '{"a": 1}'], "logit_bias must give token ids numbers"),
        (["--logit-bias", '{"999999999": 1}'], "logit_bias must name tokens of the vocabulary"),
        (["--logprobs", "21"], "logprobs must be 0 to 20"),
        (["--n", "0"], "n must be 1 to"),
        (["--regex", "a("], "regex: "),
        (["--json-schema", "{"], "json_schema: not JSON"),
        (["--response-format", "xml"], "response_format must be"),
        (["--regex", "a", "--grammar", "start: /a/"], "regex and grammar are set"),
        (["--temperature", "-1"], "temperature must be 0 or above"),
        (["--hardware", "abacus"], "no hardware profile 'abacus'"),
        (["--tp", "3"], "3"),
        (["--prompt-column", "question"], "'question'"),
    ],
)
def test_an_unusable_setting_is_refused_by_name(
    words: list[str], part: str, blendrun: Blendrun, tmp_path: Path
):
    assert_refused(plan_tokens(blendrun, *words), part, hint=None)
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize("model", ["./no-such-folder", "missing.gguf", "no-such-shape.toml"])
def test_a_model_that_is_not_there_is_refused(model: str, blendrun: Blendrun):
    assert_refused(blendrun("plan", "rows.jsonl", "--model", model), model, hint=None)


def test_prompts_that_are_not_there_are_refused(blendrun: Blendrun):
    said = blendrun("plan", "none.jsonl", "--model", SHAPE, "--hardware", "h200")
    assert_refused(said, "none.jsonl", hint=None)


def test_plan_for_two_ranks_is_made(blendrun: Blendrun):
    said = plan_tokens(blendrun, "--tp", "2")
    assert said.code == 0
    assert "tp 2" in said.out


def test_ranks_can_be_chosen_automatically(blendrun: Blendrun):
    said = plan_tokens(blendrun, "--tp", "auto", "--dp", "auto", "--devices", "2")
    assert "fastest on 2 devices" in said.out
    assert_refused(plan_tokens(blendrun, "--tp", "two"), "--tp must be a number or auto", hint=None)


def test_an_output_that_is_a_folder_is_refused(blendrun: Blendrun, tmp_path: Path):
    (tmp_path / "plans").mkdir()
    said = blendrun("plan", "tokens.jsonl", "-o", "plans", "--model", SHAPE, "--hardware", "h200")
    assert_refused(said, "plans")


# --- job file ---


def job_file(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text)
    return path


def test_job_file_sets_and_flags_win(blendrun: Blendrun, tmp_path: Path):
    job = job_file(
        tmp_path,
        f'model = "{SHAPE}"\nhardware = "h200"\npolicy = "random"\nseed = 7\nstop = ["x", "y"]\n'
        "ignore_eos = true\n",
    )
    said = blendrun("plan", "tokens.jsonl", "--config", job, "--policy", "dfs")
    assert (said.code, said.err) == (0, "")
    plan = json.loads((tmp_path / "plan.json").read_text())
    wanted = {"policy": "dfs", "seed": 7, "stop": ["x", "y"], "ignore_eos": True, "min_p": 0.0}
    assert {name: plan["settings"][name] for name in wanted} == wanted
    origins = {"policy": "flag", "seed": "file", "stop": "file", "ignore_eos": "file"}
    origins |= {"min_p": "default", "max_tokens": "default"}
    assert {name: plan["settings_from"][name] for name in origins} == origins


def test_stop_may_be_given_several_times(blendrun: Blendrun, tmp_path: Path):
    assert plan_tokens(blendrun, "--stop", "a", "--stop", "b").code == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["settings"]["stop"] == ["a", "b"]


def test_unknown_key_in_a_job_file_is_refused_with_the_known_ones(
    blendrun: Blendrun, tmp_path: Path
):
    job = job_file(tmp_path, f'model = "{SHAPE}"\npolitic = "dfs"\n')
    said = blendrun("plan", "tokens.jsonl", "--config", job)
    assert_refused(said, "job.toml", "unknown key 'politic'", "policy")


def test_job_file_of_wrong_type_or_missing_is_refused(blendrun: Blendrun, tmp_path: Path):
    job = job_file(tmp_path, f'model = "{SHAPE}"\nseed = "seven"\n')
    assert_refused(blendrun("plan", "tokens.jsonl", "--config", job), "seed must be int", hint=None)
    said = blendrun("plan", "tokens.jsonl", "--config", "none.toml")
    assert_refused(said, "none.toml", hint=None)


def test_a_wrong_flag_is_not_blamed_on_the_job_file(blendrun: Blendrun, tmp_path: Path):
    job = job_file(tmp_path, f'model = "{SHAPE}"\n')
    said = blendrun("plan", "tokens.jsonl", "--config", job, "--policy", "fastest")
    assert_refused(said, "policy must be one of", hint=None)
    assert "job.toml" not in said.err


# --- execute and report ---


def test_execute_then_report_then_nothing_to_do(planned: Blendrun, tmp_path: Path):
    said = planned("execute", "plan.json", "--run-dir", "run", "--dtype", "float32")
    assert said.code == 0
    assert said.out == "outputs: run/outputs.parquet (2 rows)\n"
    assert "float32" in said.err
    assert pq.read_table(tmp_path / "run" / "outputs.parquet").num_rows == 2
    log = (tmp_path / "run" / "run.log").read_text()
    assert "2 of 2 rows to run" in log
    assert log.endswith("finished\n")

    said = planned("report", "run")
    assert (said.code, said.err) == (0, "")
    assert re.search(r"rows answered +2 +of 2, 0 error rows", said.out)
    figures = json.loads(said.out.splitlines()[-1])
    assert (figures["complete"], figures["answered_rows"]) == (True, 2)
    assert (tmp_path / "run" / "report" / "report.parquet").is_file()

    said = planned("execute", "plan.json", "--run-dir", "run", "--dtype", "float32")
    assert said.code == 0
    assert "nothing to do" in said.out


def test_run_folder_is_named_after_the_plan(planned: Blendrun, tmp_path: Path):
    assert planned("execute", "plan.json").code == 0
    assert (tmp_path / "plan.run" / "outputs.parquet").is_file()


def test_error_rows_make_exit_code_3(blendrun: Blendrun, checkpoint: Path, tmp_path: Path):
    write_rows(tmp_path / "rows.jsonl", [*ROWS, {"prompt": 5}])
    said = blendrun("plan", "rows.jsonl", "--model", checkpoint, "--hardware", "cpu")
    assert "note: 1 row set aside" in said.out
    for _ in range(2):  # also when there is nothing left to do
        said = blendrun("execute", "plan.json", "--run-dir", "run")
        assert said.code == 3
        assert "1 error row" in said.err
        assert "(3 rows)" in said.out


def test_ranks_that_do_not_divide_the_heads_are_refused_with_those_that_do(
    planned: Blendrun, tmp_path: Path
):
    said = planned("execute", "plan.json", "--run-dir", "run", "--tp", "3")
    assert_refused(said, "among 3 ranks", "hint: tensor-parallel sizes that divide its heads: 1, 2")
    assert not (tmp_path / "run").exists()


def test_execute_runs_on_two_ranks(planned: Blendrun):
    assert_refused(planned("execute", "plan.json", "--dp", "0"), "--dp must be at least 1")
    said = planned("execute", "plan.json", "--run-dir", "run", "--dp", "2")
    assert said.code in (0, 3), said.err
    assert "(2 rows)" in said.out
    assert planned("status", "run").out.startswith("run: complete")


def test_a_plan_for_two_ranks_runs_on_two(blendrun: Blendrun, checkpoint: Path, tmp_path: Path):
    words = ["plan", "rows.jsonl", "--model", checkpoint, "--hardware", "cpu", "--tp", "2"]
    assert blendrun(*words).code == 0
    assert blendrun("execute", "plan.json", "--run-dir", "run").code == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["environment"]["tp"] == 2


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--dtype", "int8"], "dtype must be one of bfloat16, float16, float32"),
        (["--kv-memory", "lots"], "'lots' is not a size in bytes"),
        (["--page-size", "0"], "page_size must be at least 1"),
        (["--kv-memory", "1KiB"], "less than one KV page"),
        (["--model", "./elsewhere"], "./elsewhere"),
        (["--launcher", "ssh"], "--launcher must be one of local, ray"),
        (["--ray-address", "10.0.0.1:6379"], "--ray-address is of no use here"),
    ],
)
def test_an_unusable_execute_flag_is_refused(words: list[str], part: str, planned: Blendrun):
    assert_refused(planned("execute", "plan.json", *words), part, hint=None)


def test_changed_settings_of_a_run_are_refused(planned: Blendrun):
    assert planned("execute", "plan.json", "--run-dir", "run").code == 0
    said = planned("execute", "plan.json", "--run-dir", "run", "--dtype", "float32")
    assert_refused(said, "dtype was", "bfloat16", "float32", hint="hint: give another --run-dir")


def test_a_missing_plan_or_run_is_refused(blendrun: Blendrun, tmp_path: Path):
    assert_refused(blendrun("execute", "none.json"), "none.json", hint=None)
    assert_refused(blendrun("report", "none"), "holds no run")
    assert not (tmp_path / "none.run").exists()


def test_a_shape_can_not_be_executed(blendrun: Blendrun):
    plan_tokens(blendrun)
    assert_refused(blendrun("execute", "plan.json"), "can be planned, not executed")


# --- run ---


def test_run_plans_executes_reports_and_then_has_nothing_to_do(
    blendrun: Blendrun, checkpoint: Path, tmp_path: Path
):
    words = ["run", "rows.jsonl", "-o", "out", "--model", checkpoint, "--dtype", "float32"]
    said = blendrun(*words)
    assert said.code == 0
    assert "plan: out/plan.json" in said.out
    assert "outputs: out/outputs.parquet (2 rows)" in said.out
    assert json.loads(said.out.splitlines()[-1])["answered_rows"] == 2
    before = (tmp_path / "out" / "outputs.parquet").stat().st_mtime_ns

    said = blendrun(*words)
    assert said.code == 0
    assert "nothing to do" in said.out
    assert (tmp_path / "out" / "outputs.parquet").stat().st_mtime_ns == before


def test_run_with_error_rows_still_reports(blendrun: Blendrun, checkpoint: Path, tmp_path: Path):
    write_rows(tmp_path / "rows.jsonl", [*ROWS, {"prompt": 5}])
    said = blendrun("run", "rows.jsonl", "-o", "out", "--model", checkpoint)
    assert said.code == 3
    assert json.loads(said.out.splitlines()[-1])["complete"] is True


def test_run_of_other_prompts_in_the_same_folder_is_refused_and_keeps_it(
    blendrun: Blendrun, checkpoint: Path
):
    words = ["run", "rows.jsonl", "-o", "out", "--model", checkpoint]
    assert blendrun(*words).code == 0
    assert_refused(blendrun(*words, "--temperature", "0.5"), "no row of it is in the input")
    assert_refused(blendrun(*words, "--seed", "7"), "seed was 0, now 7")
    assert blendrun("report", "out").code == 0


def test_run_with_a_changed_input_keeps_what_is_still_asked_for(
    blendrun: Blendrun, checkpoint: Path, tmp_path: Path
):
    words = ["run", "rows.jsonl", "-o", "out", "--model", checkpoint]
    assert blendrun(*words).code == 0
    write_rows(tmp_path / "rows.jsonl", [{"prompt": "jumps", "max_tokens": 2}, *ROWS[::-1]])
    said = blendrun(*words)
    assert "the input has changed: 2 answers kept, 1 row new" in said.err.splitlines()
    assert "outputs: out/outputs.parquet (3 rows)" in said.out
    assert json.loads(said.out.splitlines()[-1])["answered_rows"] == 3
    said = blendrun(*words, "--limit", "1")
    assert "the input has changed: 1 answer kept, 0 rows new" in said.err.splitlines()
    said = blendrun(*words)
    assert "the input has changed: 3 answers kept, 0 rows new" in said.err.splitlines()
    assert "outputs: out/outputs.parquet (3 rows)" in said.out


def test_run_answers_every_row_on_several_ranks(
    blendrun: Blendrun, checkpoint: Path, tmp_path: Path
):
    said = blendrun("run", "rows.jsonl", "-o", "out", "--model", checkpoint, "--dp", "2")
    assert said.code == 0
    assert "tp 1, dp 2" in said.out
    assert pq.read_table(tmp_path / "out" / "outputs.parquet").num_rows == 2


def test_run_refuses_an_unusable_execute_flag_before_planning(
    blendrun: Blendrun, checkpoint: Path, tmp_path: Path
):
    said = blendrun("run", "rows.jsonl", "-o", "out", "--model", checkpoint, "--dtype", "int4")
    assert_refused(said, "dtype must be one of", hint=None)
    assert not (tmp_path / "out").exists()


def test_interrupting_says_that_the_same_command_continues(
    planned: Blendrun, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("blendrun.engine.execute.execute_plan", interrupt)
    said = planned("execute", "plan.json")
    assert said.code == 130
    assert "the same command continues" in said.err
