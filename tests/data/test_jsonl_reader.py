"""JSON Lines: every line is a row or blank, in plain files and packed ones."""

import gzip

import pyarrow as pa
import pytest

from blendrun.data import jsonl_reader
from blendrun.data.jsonl_reader import read_lines
from blendrun.errors import InputError


def read(tmp_path, content, limit=None, name="a.jsonl"):
    """Contents and numbers of the lines that are rows."""
    path = tmp_path / name
    path.write_bytes(content)
    batches = list(read_lines(path, limit))
    contents = [content for batch in batches for content in batch.contents]
    return contents, [number for batch in batches for number in batch.numbers]


@pytest.mark.parametrize(
    "content",
    [
        b'{"a":1}\n{"a":2}\n',
        b'{"a":1}\n{"a":2}',
        b'\xef\xbb\xbf{"a":1}\r\n{"a":2}\r\n',
        b'  {"a":1}\t\n{"a":2}   \n',
    ],
)
def test_bom_line_ends_and_spaces_change_nothing(tmp_path, content):
    assert read(tmp_path, content) == ([b'{"a":1}', b'{"a":2}'], [1, 2])


def test_blank_lines_are_no_rows_but_count_as_lines(tmp_path):
    content = b'\xef\xbb\xbf\n\n{"a":1}\n  \r\n\t\n{"a":2}\n\n'
    assert read(tmp_path, content) == ([b'{"a":1}', b'{"a":2}'], [3, 6])


def test_empty_files_have_no_rows(tmp_path):
    for content in (b"", b"\n\n", b"\xef\xbb\xbf"):
        assert read(tmp_path, content) == ([], [])


def test_a_limit_does_not_count_blank_lines(tmp_path):
    content = b'{"a":1}\n\n[]\n{"a":2}\n{"a":3}\n'
    assert read(tmp_path, content, limit=3) == ([b'{"a":1}', b"[]", b'{"a":2}'], [1, 3, 4])


def test_batches_join_to_the_whole_file(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl_reader, "_BATCH_ROWS", 3)
    lines = [b'{"a":%d}' % i for i in range(10)]
    assert read(tmp_path, b"\n".join(lines)) == (lines, list(range(1, 11)))


def test_gzip_with_several_members_is_read_through(tmp_path):
    content = gzip.compress(b'{"a":1}\n') + gzip.compress(b'{"a":2}\n')
    assert read(tmp_path, content, name="a.jsonl.gz")[0] == [b'{"a":1}', b'{"a":2}']


def zstd(content):
    return pa.Codec("zstd").compress(content, asbytes=True)


def test_zstd_with_several_frames_is_read_through(tmp_path):
    content = zstd(b'{"a":1}\n{"a"') + zstd(b":2}\n")
    assert read(tmp_path, content, name="a.jsonl.zst")[0] == [b'{"a":1}', b'{"a":2}']


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
@pytest.mark.parametrize("damage", [lambda packed: packed[:-3], lambda packed: packed + b"rest"])
def test_damaged_files_are_refused_by_name(tmp_path, pack, damage):
    name = "a.jsonl.gz" if pack is gzip.compress else "a.jsonl.zst"
    for content in (damage(pack(b'{"a":1}\n' * 99)), b"plain text"):
        with pytest.raises(InputError, match=f"cannot read .*{name}"):
            read(tmp_path, content, name=name)


def test_progress_ends_at_the_size_of_the_file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n' * 10)
    seen = []
    list(read_lines(path, None, seen.append))
    assert seen[-1] == path.stat().st_size
