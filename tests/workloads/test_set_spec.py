from pathlib import Path

import pytest

from blendrun.errors import InputError
from blendrun.workloads.set_spec import default_sets, parse_sets
from blendrun.workloads.sets import LognormalSet, SubjectSet, TraceSet
from blendrun.workloads.trace_file import TraceFile


def test_each_kind_is_understood():
    texts = ["a=openvid", "b=mmlu", "c=trace:x.parquet*0.81+y.parquet*0.19", "d=trace:z.parquet"]
    files = TraceFile(Path("t/x.parquet"), 0.81), TraceFile(Path("t/y.parquet"), 0.19)
    assert parse_sets(texts, Path("t"), 16) == (
        LognormalSet("a"),
        SubjectSet("b"),
        TraceSet("c", files, 16),
        TraceSet("d", (TraceFile(Path("t/z.parquet"), 1.0),), 16),
    )


def test_trace_files_lie_in_the_folder_unless_their_path_is_absolute(tmp_path: Path):
    for text, path in (("x.parquet", Path("x.parquet")), (f"{tmp_path}/x", tmp_path / "x")):
        (only,) = parse_sets([f"a=trace:{text}"], None)
        assert only == TraceSet("a", (TraceFile(path),))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "no set"),
        (["openvid"], "'openvid' is no kind|no kind of set|'' is no kind"),
        (["=openvid"], "does not name a set"),
        (["a b=openvid"], "does not name a set"),
        (["a=opnvid"], "'opnvid' is no kind of set"),
        (["a=trace:"], "'trace:' is no kind of set"),
        (["a=trace:x*heavy"], "no file with a weight"),
        (["a=trace:x*0"], "no file with a weight"),
        (["a=trace:x*inf"], "no file with a weight"),
        (["a=trace:x+"], "no file with a weight"),
        (["a=mmlu", "a=openvid"], "two sets are named 'a'"),
    ],
)
def test_a_text_that_is_no_set_is_refused_with_a_hint(texts: list[str], message: str):
    with pytest.raises(InputError, match=message) as caught:
        parse_sets(texts, None)
    assert caught.value.hint


def test_a_system_prompt_of_negative_length_is_refused():
    with pytest.raises(InputError, match="system prompt"):
        parse_sets(["a=openvid"], None, -1)


def test_the_default_sets_are_the_papers_and_need_a_folder():
    assert [each.name for each in default_sets(Path("t"))] == ["burst", "openvid", "mmlu"]
    with pytest.raises(InputError, match="--traces is missing") as caught:
        default_sets(None)
    assert "azure_code.parquet" in str(caught.value.hint)
