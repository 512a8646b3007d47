"""Inputs behind URLs: found, opened, measured and hashed as local ones are."""

import json

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendrun.data.columns import ColumnNames
from blendrun.data.locations import RemoteFile, is_url, locate, size_of
from blendrun.data.sampling import SamplingParams
from blendrun.data.sources import check_sources, expand_paths, hash_file
from blendrun.errors import InputError, PlanError
from tiny_ingest import ingest, through


@pytest.fixture
def memory():
    """An empty place at memory://job."""
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


def put(memory, name, content=b"{}\n"):
    memory.pipe(f"/job/{name}", content)


def test_a_url_stays_a_url_and_a_path_a_path(tmp_path):
    assert str(locate("s3://bucket/a b/x.jsonl")) == "s3://bucket/a b/x.jsonl"
    assert locate(str(tmp_path)) == tmp_path
    assert not is_url("/x/a:b//c.jsonl")


def test_folders_and_patterns_behind_a_url_are_walked_in_order(memory):
    for name in ("b.jsonl", "a/x.parquet", "a/_tmp/y.jsonl", "a/.z.jsonl", "notes.txt"):
        put(memory, name)
    found = [str(file) for file in expand_paths(["memory://job"])]
    assert found == ["memory:///job/a/x.parquet", "memory:///job/b.jsonl"]
    found = [file.name for file in expand_paths(["memory://job/*.jsonl"])]
    assert found == ["b.jsonl"]
    assert expand_paths(["memory://job/b.jsonl"]) == [RemoteFile("memory://job/b.jsonl")]


def test_a_file_url_is_the_path(tmp_path):
    path = tmp_path / "a b.jsonl"
    path.write_bytes(b"{}")
    assert expand_paths([f"file://{str(path).replace(' ', '%20')}"]) == [path]
    with pytest.raises(InputError, match="named twice"):
        expand_paths([str(path), path.as_uri()])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://job/gone.jsonl", "no such file"),
        ("memory://job/*.parquet", "no such file"),
        ("memory://job", "no input file"),
        ("memory://job/notes.txt", "cannot tell the kind"),
        ("nosuch://job/a.jsonl", "cannot open nosuch://job/a.jsonl"),
    ],
)
def test_a_url_without_inputs_is_refused_by_name(memory, url, message):
    put(memory, "notes.txt")
    with pytest.raises(InputError, match=message):
        expand_paths([url])


def test_a_filesystem_that_is_not_installed_is_named(monkeypatch):
    def missing(_url):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(InputError, match="Install s3fs") as caught:
        expand_paths(["s3://bucket/a.jsonl"])
    assert caught.value.hint == "install that package"


def test_without_fsspec_the_hint_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(InputError, match="needs the package fsspec") as caught:
        size_of(RemoteFile("s3://bucket/a.jsonl"))
    assert "blendrun[remote]" in caught.value.hint


def test_a_change_behind_a_url_is_noticed(memory, tokenizer, tmp_path):
    put(memory, "a.jsonl", b'{"prompt": "x"}\n')
    arguments = (ColumnNames(), tokenizer, SamplingParams(), 50, 257, tmp_path / "store")
    result = ingest(["memory://job/a.jsonl"], *arguments)
    assert result.sources[0].sha256 == hash_file(RemoteFile("memory://job/a.jsonl"))
    check_sources(result.sources)
    put(memory, "a.jsonl", b'{"prompt": "y"}\n')
    with pytest.raises(PlanError, match="has changed"):
        check_sources(result.sources)


def test_rows_behind_urls_come_out_with_their_columns(memory, tokenizer, tmp_path):
    table = pa.table({"prompt": ["a"], "k": pa.array([2**63 - 1])})
    with memory.open("/job/part=07/a.parquet", "wb") as file:
        pq.write_table(table, file)
    put(memory, "part=08/b.jsonl", json.dumps({"prompt": None, "k": 1}).encode())
    _, outputs = through(["memory://job"], tmp_path, tokenizer)
    rows = outputs.select(["prompt", "k", "part"]).to_pylist()
    assert rows == [
        {"prompt": "a", "k": 2**63 - 1, "part": "07"},
        {"prompt": None, "k": 1, "part": "08"},
    ]
