"""Answers follow their content to other rows, whenever the process dies on the way."""

import errno
import os
import shutil
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from blendrun.data.answer_keys import AnswerKeys, read_keys
from blendrun.data.answers import answers_table
from blendrun.data.manifest import Manifest, read_manifest, write_manifest
from blendrun.data.renumber import renumber, unused_keys
from blendrun.data.results import ResultJournal, read_answers
from blendrun.data.unfinished import UNFINISHED_SCHEMA, read_unfinished
from blendrun.errors import DiskFullError, PlanError

WORDS = ["ant", "bee", "cat", "dog", "eel", "fox"]


def keys(words: list[str]) -> AnswerKeys:
    content = np.array([list(word.encode().ljust(16)) for word in words], np.uint8)
    rows = np.arange(len(words))
    return AnswerKeys.of(rows, np.zeros(len(words), np.int32), content.reshape(-1, 16))


def answers(words: list[str], rows: list[int], *, error: str | None = None) -> pa.Table:
    return answers_table(
        row=np.array(rows),
        output_text=[words[row] for row in rows],
        output_token_ids=[[row] for row in rows],
        finish_reason=["stop"] * len(rows),
        num_prompt_tokens=[1] * len(rows),
        num_cached_tokens=[0] * len(rows),
        error=[error] * len(rows),
    )


def manifest(job: str) -> Manifest:
    return Manifest.new(Path(job), {"job_id": job})


def begin(run_dir: Path, words: list[str], answered: list[list[int]], unfinished: list[int]):
    """A run of `words`, some of which are answered with themselves, in several parts."""
    with ResultJournal(run_dir) as journal:
        for rows in answered:
            journal.append(answers(words, rows))
        begun = [
            {"row": row, "output_index": 0, "token_ids": list(words[row].encode())}
            for row in unfinished
        ]
        journal.save_unfinished(pa.Table.from_pylist(begun, UNFINISHED_SCHEMA))
    keys(words).write(run_dir, "first")
    write_manifest(run_dir, manifest("first"))


def change(run_dir: Path, words: list[str], job: str) -> None:
    renumber(run_dir, read_keys(run_dir), keys(words), job, manifest(job))


def state(run_dir: Path, words: list[str]) -> tuple[dict[str, str], dict[str, str], int]:
    """Answers and unfinished answers by the word of their row, and how many are set aside."""
    found = read_answers(run_dir).to_pylist()
    begun = read_unfinished(run_dir).to_pylist()
    return (
        {words[one["row"]]: one["output_text"] for one in found},
        {words[one["row"]]: bytes(one["token_ids"]).decode() for one in begun},
        len(unused_keys(run_dir)),
    )


def test_answers_go_where_their_rows_are(tmp_path: Path):
    begin(tmp_path, WORDS, [[3, 0], [1], [4]], [2, 5])
    words = ["new", "fox", "dog", "ant", "cat"]
    change(tmp_path, words, "second")
    assert state(tmp_path, words) == (
        {"dog": "dog", "ant": "ant"},
        {"fox": "fox", "cat": "cat"},
        2,
    )
    assert read_manifest(tmp_path).identity == {"job_id": "second"}
    assert read_keys(tmp_path).content.equals(keys(words).content)
    with ResultJournal(tmp_path) as journal:
        assert len(journal.finished()) == 2
        journal.append(answers(words, [0]))
    assert len(list((tmp_path / "parts").iterdir())) == 2


def test_answers_come_back_with_their_rows(tmp_path: Path):
    begin(tmp_path, WORDS, [[0, 1, 2, 3, 4, 5]], [])
    for number, words in enumerate([["bee"], ["cat", "new"], ["new", "fox"]]):
        change(tmp_path, words, str(number))
        assert state(tmp_path, words)[2] == 5
    change(tmp_path, WORDS[::-1], "first again")
    assert state(tmp_path, WORDS[::-1]) == ({word: word for word in WORDS}, {}, 0)


def test_of_several_tries_the_one_that_counts_stays_that(tmp_path: Path):
    begin(tmp_path, WORDS, [], [])
    with ResultJournal(tmp_path) as journal:
        for number in range(3):
            journal.append(answers(WORDS, [1, 2], error=f"bad: {number}"))
        journal.append(answers(WORDS, [2]))
    change(tmp_path, ["cat"], "second")
    change(tmp_path, ["cat", "bee"], "third")
    found = read_answers(tmp_path)
    assert found["status"].to_pylist() == ["ok", "error"]
    assert found["error"].to_pylist() == [None, "bad: 2"]


def test_an_answer_of_no_row_is_damage(tmp_path: Path):
    begin(tmp_path, WORDS, [[5]], [])
    keys(WORDS[:3]).write(tmp_path, "first")
    with pytest.raises(PlanError, match="part-000001"):
        change(tmp_path, WORDS, "second")
    with ResultJournal(tmp_path) as journal:
        assert len(journal.finished()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("keys.parquet", "manifest.json", "parts", "run.lock", "steps")
    ]


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begin(tmp_path, WORDS, [[3, 0], [1], [4]], [2, 5])
    before = state(tmp_path, WORDS)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full := Full(2))
        with pytest.raises(DiskFullError):
            change(tmp_path, WORDS[1:], "second")
    assert full.left < 0
    assert state(tmp_path, WORDS) == before
    assert not (tmp_path / "renumbered.tmp").exists()
    change(tmp_path, WORDS[1:], "second")
    assert read_manifest(tmp_path).identity == {"job_id": "second"}


class Full:
    """No room from the call number `left` on."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, _: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "no space left")


class Killed(BaseException):
    """Not to be caught by anyone."""


def kill_at(patch: pytest.MonkeyPatch, moment: int) -> None:
    """Ends every change of files from number `moment` on; half of a folder may be gone by then."""
    done = count()

    def dying(real, *, halfway=None):
        def call(*args, **kwargs):
            if next(done) < moment:
                return real(*args, **kwargs)
            if halfway is not None:
                halfway(*args)
            raise Killed

        return call

    def some_of(folder: Path, *_: object) -> None:
        for path in sorted(folder.rglob("*.parquet"))[:1]:
            os.unlink(path)  # noqa: PTH108 (the patched ones are those of Path)

    for name in ("rename", "replace", "unlink", "mkdir", "rmdir"):
        patch.setattr(Path, name, dying(getattr(Path, name)))
    patch.setattr(shutil, "rmtree", dying(shutil.rmtree, halfway=some_of))
    patch.setattr(os, "fsync", dying(os.fsync))


def test_wherever_it_dies_nothing_is_lost_and_nothing_is_there_twice(tmp_path: Path):
    whole, words = tmp_path / "whole", ["new", "fox", "dog", "ant"]
    begin(whole, WORDS, [[3, 0], [1], [4]], [2, 5])
    before = state(whole, WORDS)
    shutil.copytree(whole, tmp_path / "changed")
    change(tmp_path / "changed", words, "second")
    after, ends = state(tmp_path / "changed", words), []
    for moment in count():
        run_dir = tmp_path / str(moment)
        shutil.copytree(whole, run_dir)
        try:
            with pytest.MonkeyPatch.context() as patch:
                kill_at(patch, moment)
                change(run_dir, words, "second")
        except Killed:
            ResultJournal(run_dir).close()
        else:
            break
        job = read_manifest(run_dir).identity["job_id"]
        ends.append(job)
        assert state(run_dir, WORDS if job == "first" else words) == (
            before if job == "first" else after
        )
        assert not [path for path in run_dir.iterdir() if "renumbered" in path.name]
    assert ends == sorted(ends)
    assert len(ends) > 20
    assert {"first", "second"} == set(ends)


def test_it_can_die_again_while_it_is_brought_to_its_end(tmp_path: Path):
    words = ["new", "fox", "dog", "ant"]
    begin(tmp_path, WORDS, [[3, 0], [1], [4]], [2, 5])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blendrun.data.renumbered.settle", lambda _: None)
        change(tmp_path, words, "second")
    for _ in range(30):
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, 3)
            try:
                ResultJournal(tmp_path).close()
            except Killed:
                continue
            break
    ResultJournal(tmp_path).close()
    assert state(tmp_path, words) == ({"dog": "dog", "ant": "ant"}, {"fox": "fox"}, 2)
