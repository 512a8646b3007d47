"""Input files: which are found, in which order, and how a change is noticed."""

import os
from hashlib import sha256

import pytest

from blendrun.data.sources import (
    SourceFile,
    check_sources,
    expand_paths,
    format_of,
    hash_file,
    inputs_hash,
)
from blendrun.errors import InputError, PlanError


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


def names(folder, *paths):
    return [str(p.relative_to(folder)) for p in expand_paths([str(folder / p) for p in paths])]


def test_files_keep_the_order_given_and_folders_are_sorted(tmp_path):
    touch(tmp_path, "z.jsonl", "d/b.parquet", "d/a/x.NDJSON", "d/c.jsonl.gz", "d/README.md")
    touch(tmp_path, "d/.hidden.jsonl", "d/_tmp/a.parquet", "d/_SUCCESS")
    expected = ["z.jsonl", "d/a/x.NDJSON", "d/b.parquet", "d/c.jsonl.gz"]
    assert names(tmp_path, "z.jsonl", "d") == expected


def test_files_of_a_run_in_the_folder_are_no_inputs(tmp_path):
    touch(tmp_path, "d/run.lock", "d/keys.parquet", "d/unfinished.parquet", "d/outputs.parquet")
    touch(tmp_path, "d/parts/part-000001.parquet", "d/unused/part-000001.parquet", "d/a.parquet")
    touch(tmp_path, "d/renumbered/keys.parquet", "d/renumbered.tmp/keys.parquet")
    assert names(tmp_path, "d") == ["d/a.parquet"]


def test_the_hash_of_inputs_is_that_of_what_outputs_take_from_them():
    def hash_of(path="/x/a=1/b.jsonl", num_rows=3, sha256="ab", columns=()):
        return inputs_hash([SourceFile(path, "jsonl", num_rows, 10, sha256, columns)])

    assert hash_of() == hash_of(path="/y/z/a=1/c.jsonl")
    others = [
        hash_of(path="/x/a=2/b.jsonl"),
        hash_of(num_rows=2),
        hash_of(sha256="cd"),
        hash_of(columns=(("a", "string"),)),
        inputs_hash([]),
    ]
    assert len({hash_of(), *others}) == 6


def test_patterns_are_sorted_and_may_go_deep(tmp_path):
    touch(tmp_path, "b.jsonl", "a.jsonl", "x/y/c.jsonl", "n.parquet")
    assert names(tmp_path, "*.jsonl") == ["a.jsonl", "b.jsonl"]
    assert names(tmp_path, "**/c.jsonl", "n.*") == ["x/y/c.jsonl", "n.parquet"]


def test_a_name_with_brackets_is_a_file_before_it_is_a_pattern(tmp_path):
    touch(tmp_path, "a[1].jsonl", "a1.jsonl")
    assert names(tmp_path, "a[1].jsonl") == ["a[1].jsonl"]


def test_relative_paths_become_absolute(tmp_path, monkeypatch):
    touch(tmp_path, "a.jsonl")
    monkeypatch.chdir(tmp_path)
    assert expand_paths(["a.jsonl"]) == [tmp_path / "a.jsonl"]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "no input file"),
        (["gone.jsonl"], "no such file"),
        (["*.ndjson"], "no such file"),
        (["empty"], "no input file in the folder"),
        (["a.csv"], "cannot tell the kind"),
        (["a.jsonl", "*.jsonl"], "named twice"),
        (["a.jsonl", "link.jsonl"], "named twice"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, paths, message):
    touch(tmp_path, "a.jsonl", "a.csv", "empty/readme.txt")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "a.jsonl")
    with pytest.raises(InputError, match=message):
        names(tmp_path, *paths)


def test_a_json_file_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(InputError) as caught:
        format_of(tmp_path / "a.json")
    assert "jsonl" in caught.value.hint


def test_a_change_of_same_size_is_noticed_and_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one")
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    source = SourceFile(str(path), "jsonl", 1, 3, hash_file(path))
    assert source.sha256 == sha256(b"one").hexdigest()
    check_sources([source])
    path.write_bytes(b"two")
    os.utime(path, ns=times)
    with pytest.raises(PlanError, match=r"a\.jsonl has changed"):
        check_sources([source])
    path.unlink()
    with pytest.raises(PlanError, match=r"a\.jsonl is gone"):
        check_sources([source])


def test_a_source_survives_json():
    source = SourceFile("/x/a.jsonl", "jsonl", 3, 10, "ab", (("prompt", "string"),))
    assert SourceFile.from_dict(source.to_dict()) == source
    with pytest.raises(PlanError):
        SourceFile.from_dict({"path": "/x", "columns": []})
    with pytest.raises(PlanError):
        SourceFile.from_dict({})
