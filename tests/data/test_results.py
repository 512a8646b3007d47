"""Result journal: parts appear whole or not at all; one writer at a time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendrun.data import disk, part_files, results
from blendrun.data.answers import ANSWER_SCHEMA, MOST_ANSWERS, answers_table
from blendrun.data.results import PARTS, ResultJournal, files_of, read_answers, read_steps
from blendrun.errors import CapacityError, InputError, PlanError


def answers(*rows, text="text"):
    return answers_table(
        row=np.array(rows, np.int64),
        output_text=[f"{text} {row}" for row in rows],
        output_token_ids=[np.array([row, row], np.int32) for row in rows],
        finish_reason=["stop"] * len(rows),
        num_prompt_tokens=[5] * len(rows),
        num_cached_tokens=[3] * len(rows),
    )


def rows_in(journal):
    assert not (journal.finished() % MOST_ANSWERS).any()
    return list(journal.finished() // MOST_ANSWERS)


def test_answers_from_columns_have_the_schema():
    table = answers_table(
        row=[4, 2],
        output_text=["a", None],
        output_token_ids=[[7], []],
        finish_reason=["length", None],
        num_prompt_tokens=[1, 2],
        num_cached_tokens=[0, 0],
        error=[None, "needs_more_memory: too long"],
    )
    assert table.schema.equals(ANSWER_SCHEMA)
    assert table["status"].to_pylist() == ["ok", "error"]
    assert table["num_output_tokens"].to_pylist() == [1, 0]
    assert table["output_token_ids"].to_pylist() == [[7], []]
    assert answers().schema.equals(ANSWER_SCHEMA)


def test_what_is_appended_is_there_after_reopening(tmp_path):
    with ResultJournal(tmp_path / "deep" / "run") as journal:
        assert rows_in(journal) == []
        journal.append(answers(5, 1))
        journal.append(answers())
        journal.append(answers(3))
        assert rows_in(journal) == [1, 3, 5]
        run_dir = journal.run_dir
    assert [p.name for p in sorted((run_dir / "parts").iterdir())] == [
        "part-000001.parquet",
        "part-000002.parquet",
    ]
    with ResultJournal(run_dir) as journal:
        assert rows_in(journal) == [1, 3, 5]
        journal.append(answers(2))
        assert rows_in(journal) == [1, 2, 3, 5]
    table = read_answers(run_dir)
    assert table["row"].to_pylist() == [1, 2, 3, 5]
    assert table["output_text"].to_pylist() == ["text 1", "text 2", "text 3", "text 5"]


def test_of_two_answers_to_a_row_the_first_stays(tmp_path):
    with ResultJournal(tmp_path) as journal:
        journal.append(answers(2, 1, text="first"))
        journal.append(answers(1, 0, text="second"))
        assert rows_in(journal) == [0, 1, 2]
    assert read_answers(tmp_path)["output_text"].to_pylist() == ["second 0", "first 1", "first 2"]


def test_a_folder_without_answers_reads_as_none(tmp_path):
    assert read_answers(tmp_path).num_rows == 0
    assert read_steps(tmp_path).num_rows == 0


def test_steps_come_back_in_the_order_they_were_added(tmp_path):
    with ResultJournal(tmp_path) as journal:
        for start in range(0, 24, 2):
            journal.append_steps(pa.table({"step": [start, start + 1]}))
        journal.append_steps(pa.table({"step": pa.array([], pa.int64())}))
        assert journal.read_steps()["step"].to_pylist() == list(range(24))
    assert len(list((tmp_path / "steps").iterdir())) == 12


def test_a_table_of_other_columns_is_refused(tmp_path):
    with ResultJournal(tmp_path) as journal, pytest.raises(PlanError, match="row, answer"):
        journal.append(pa.table({"row": [1], "answer": ["x"]}))


def test_leftovers_are_not_read_and_go(tmp_path):
    with ResultJournal(tmp_path) as journal:
        journal.append(answers(1))
    leftovers = [
        tmp_path / "outputs.parquet.tmp",
        tmp_path / "parts" / "part-000002.parquet.tmp",
        tmp_path / "steps" / "steps-000001.parquet.tmp",
    ]
    for path in leftovers:
        path.write_bytes(b"half")
    assert read_answers(tmp_path).num_rows == 1
    with ResultJournal(tmp_path) as journal:
        assert rows_in(journal) == [1]
    assert not any(path.exists() for path in leftovers)


def test_files_of_other_names_are_left_alone(tmp_path):
    with ResultJournal(tmp_path) as journal:
        journal.append(answers(1))
    (tmp_path / "parts" / "part-copy.parquet").write_bytes(b"mine")
    with ResultJournal(tmp_path) as journal:
        journal.append(answers(2))
    assert read_answers(tmp_path).num_rows == 2
    assert (tmp_path / "parts" / "part-copy.parquet").exists()


def wrong_columns(path):
    pq.write_table(pa.table({"line": [1]}), path)


@pytest.mark.parametrize(
    "damage", [lambda p: p.write_bytes(b""), lambda p: p.write_bytes(b"x" * 99), wrong_columns]
)
def test_a_part_that_cannot_be_read_is_named(tmp_path, damage):
    with ResultJournal(tmp_path) as journal:
        journal.append(answers(1))
        journal.append(answers(2))
    damage(tmp_path / "parts" / "part-000002.parquet")
    for read in (ResultJournal, read_answers):
        with pytest.raises(PlanError, match=r"part-000002\.parquet"):
            read(tmp_path)
    (tmp_path / "parts" / "part-000002.parquet").unlink()
    with ResultJournal(tmp_path) as journal:  # the failed opening kept no lock
        assert rows_in(journal) == [1]


def test_a_second_writer_is_refused_until_the_first_closes(tmp_path):
    journal = ResultJournal(tmp_path)
    with pytest.raises(InputError, match=f"in use by process {os.getpid()}"):
        ResultJournal(tmp_path)
    journal.append(answers(1))
    journal.close()
    ResultJournal(tmp_path).close()


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_part_that_fails_leaves_nothing(tmp_path, monkeypatch, step):
    def fail(*_):
        raise OSError(28, "No space left on device")

    with ResultJournal(tmp_path) as journal:
        journal.append(answers(1))
        with monkeypatch.context() as patch:
            if step == "fsync":
                patch.setattr(disk.os, "fsync", fail)
            else:
                patch.setattr(disk.Path, "replace", fail)
            with pytest.raises(CapacityError, match=r"part-000002\.parquet"):
                journal.append(answers(2))
        assert rows_in(journal) == [1]
        assert len(list((tmp_path / "parts").iterdir())) == 1
        journal.append(answers(2))
        assert rows_in(journal) == [1, 2]


WRITER = """
import sys
from pathlib import Path
from blendrun.data.answers import answers_table
from blendrun.data.results import ResultJournal

journal = ResultJournal(Path(sys.argv[1]))
row = len(journal.finished())
while True:
    journal.append(answers_table(
        row=[row], output_text=[str(row)], output_token_ids=[[row]], finish_reason=["stop"],
        num_prompt_tokens=[1], num_cached_tokens=[0],
    ))
    print(row, flush=True)
    row += 1
"""


def test_what_was_appended_survives_kill_and_the_lock_does_not(tmp_path):
    confirmed = -1
    for num_appends in (1, 4, 2):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            for _ in range(num_appends):
                confirmed = int(child.stdout.readline())
            with pytest.raises(InputError, match="in use"):
                ResultJournal(tmp_path)
            child.send_signal(signal.SIGKILL)
        with ResultJournal(tmp_path) as journal:
            rows = rows_in(journal)
        assert rows == list(range(len(rows)))
        assert len(rows) > confirmed
    assert read_answers(tmp_path)["output_text"].to_pylist() == [str(row) for row in rows]


def many(journal, number):
    for row in range(number):
        journal.append(answers(row))
        journal.append_steps(pa.table({"step": [row]}))


@pytest.fixture
def few_small(monkeypatch):
    """Files are merged when there are four."""
    for module in (results, part_files):
        monkeypatch.setattr(module, "MOST_SMALL_FILES", 4)


@pytest.mark.usefixtures("few_small")
def test_small_parts_are_put_together_while_the_run_goes_on(tmp_path):
    with ResultJournal(tmp_path) as journal:
        many(journal, 30)
        assert rows_in(journal) == list(range(30))
        assert len(list((tmp_path / "parts").iterdir())) <= 4
        assert len(list((tmp_path / "steps").iterdir())) <= 4
        assert read_answers(tmp_path)["row"].to_pylist() == list(range(30))
        assert journal.read_steps()["step"].to_pylist() == list(range(30))


def test_many_small_parts_are_put_together_at_a_restart(tmp_path, monkeypatch):
    with ResultJournal(tmp_path) as journal:
        many(journal, 6)
    before = read_answers(tmp_path)
    for module in (results, part_files):
        monkeypatch.setattr(module, "MOST_SMALL_FILES", 5)
    with ResultJournal(tmp_path) as journal:
        assert [path.name for path in (tmp_path / "parts").iterdir()] == [
            "part-000001-000006.parquet"
        ]
        journal.append(answers(6))
        assert rows_in(journal) == list(range(7))
    assert (tmp_path / "parts" / "part-000007.parquet").exists()
    assert read_answers(tmp_path).slice(0, 6).equals(before)


@pytest.mark.usefixtures("few_small")
def test_large_parts_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(part_files, "_SMALL_BYTES", 10)
    with ResultJournal(tmp_path) as journal:
        many(journal, 9)
    assert len(list((tmp_path / "parts").iterdir())) == 9


@pytest.mark.parametrize("num_deleted", [0, 1, 3])
def test_a_merge_that_is_killed_loses_and_doubles_nothing(tmp_path, monkeypatch, num_deleted):
    with ResultJournal(tmp_path) as journal:
        many(journal, 3)
    for module in (results, part_files):
        monkeypatch.setattr(module, "MOST_SMALL_FILES", 4)
    unlink, deleted = Path.unlink, []

    def die(path, *args, **more):
        if not path.name.endswith(".tmp"):
            if len(deleted) == num_deleted:
                raise KeyboardInterrupt
            deleted.append(path)
        unlink(path, *args, **more)

    with ResultJournal(tmp_path) as journal:
        monkeypatch.setattr(Path, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            journal.append(answers(3))
        monkeypatch.setattr(Path, "unlink", unlink)
    assert read_answers(tmp_path)["row"].to_pylist() == [0, 1, 2, 3]
    with ResultJournal(tmp_path) as journal:
        assert rows_in(journal) == [0, 1, 2, 3]
        assert [path.name for path in (tmp_path / "parts").iterdir()] == [
            "part-000001-000004.parquet"
        ]
        journal.append_steps(pa.table({"step": [3]}))
        assert read_steps(tmp_path)["step"].to_pylist() == [0, 1, 2, 3]


@pytest.mark.usefixtures("few_small")
def test_who_reads_while_files_are_merged_starts_again(tmp_path, monkeypatch):
    journal = ResultJournal(tmp_path)
    many(journal, 3)
    read = results.read_part

    def slowly(path, names):
        if len(files_of(tmp_path, PARTS)) == 3:
            journal.append(answers(3))
        return read(path, names)

    monkeypatch.setattr(results, "read_part", slowly)
    assert read_answers(tmp_path)["row"].to_pylist() == [0, 1, 2, 3]
    journal.close()
