"""Prompts over columns: what a template may hold, and what a row must have for it."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendrun.data.columns import ColumnNames
from blendrun.data.input_options import InputOptions
from blendrun.data.prompt_template import PromptTemplate
from blendrun.data.rows import BadRowError
from blendrun.data.sampling import SamplingParams
from blendrun.errors import InputError
from tiny_ingest import ingest


@pytest.mark.parametrize(
    ("source", "values", "expected"),
    [
        ("Sum: {text}", {"text": "a {b}\u2028"}, "Sum: a {b}\u2028"),
        ("{a b}|{c.d}", {"a b": 1, "c.d": "x"}, "1|x"),
        ("{n} {f} {b} {l}", {"n": 7, "f": 0.5, "b": True, "l": ["é"]}, '7 0.5 true ["é"]'),
        ("{{ text }}\n", {"text": "x"}, "x\n"),
        ("{{ a.b[0] }} {", {"a": {"b": [5]}}, "5 {"),
        ("{% if x %}{{ x }}{% else %}no{% endif %}", {"x": None}, "no"),
        ("{% for w in words %}{{ w }},{% endfor %}", {"words": ["a", "b"]}, "a,b,"),
    ],
)
def test_columns_stand_in_the_text(source, values, expected):
    assert PromptTemplate(source).render(values) == expected


def test_the_columns_of_a_template_are_known_before_a_row():
    assert PromptTemplate("{a} {b} {a}").names == {"a", "b"}
    assert PromptTemplate("{% for x in xs %}{{ x }}{{ y }}{% endfor %}").names == {"xs", "y"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no column", "names no column"),
        ("{{ 1 }}", "names no column"),
        ("{", "not valid"),
        ("{}", "braces without a column"),
        ('Answer as {"a": 1}: {text}', "braces without a column"),
        ("{text!r}", "braces without a column"),
        ("{% if x %}", "not valid Jinja"),
    ],
)
def test_what_is_no_template_is_refused(source, message):
    with pytest.raises(InputError, match=message):
        PromptTemplate(source)


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("{a}", {"a": None}),
        ("{a}", {}),
        ("{{ a }}", {"a": None}),
        ("{{ a }}", {}),
        ("{{ a.b }}", {"a": {}}),
        ("{{ a.__class__.__mro__ }}", {"a": "x"}),
        ("{{ a.append(1) }}", {"a": []}),
        ("{% for i in range(10 ** 9) %}{{ a }}{% endfor %}", {"a": "x"}),
    ],
)
def test_a_row_that_does_not_fill_the_template_is_bad(source, values):
    with pytest.raises(BadRowError) as caught:
        PromptTemplate(source).render(values)
    assert caught.value.code == "template_error"


@pytest.fixture
def run(tmp_path, tokenizer):
    def call(rows, template, columns=ColumnNames()):  # noqa: B008
        path = tmp_path / ("rows.parquet" if isinstance(rows, pa.Table) else "rows.jsonl")
        if isinstance(rows, pa.Table):
            pq.write_table(rows, path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        arguments = (columns, tokenizer, SamplingParams(), 1000, 257, tmp_path / "store")
        return ingest([str(path)], *arguments, options=InputOptions(template=template))

    return call


def texts(result):
    return [bytes(result.store[i].astype(np.uint8)).decode() for i in range(len(result.store))]


def test_rows_get_their_prompt_from_the_template_alone(run):
    rows = [{"prompt": "p", "text": "a"}, {"text": "b", "max_tokens": 3}, {"prompt": "x"}]
    result = run(rows, "<{text}>")
    assert texts(result) == ["<a>", "<b>"]
    assert result.requests["max_tokens"].to_pylist() == [256, 3]
    assert result.rejected["code"].to_pylist() == ["template_error"]
    assert dict(result.sources[0].columns) == {
        "prompt": "string", "text": "string", "max_tokens": "int64"
    }  # fmt: skip


def test_a_template_may_read_the_prompt_column_itself(run):
    assert texts(run([{"prompt": "p"}], "Q: {prompt}")) == ["Q: p"]


def test_columns_of_parquet_are_read_by_type(run):
    table = pa.table({"ids": pa.array([[1, 2]]), "day": pa.array([0], pa.date32())})
    assert texts(run(table, "{ids} {day}")) == ['[1, 2] "1970-01-01"']


@pytest.mark.parametrize("as_parquet", [False, True])
def test_a_column_that_is_missing_is_refused(run, as_parquet):
    rows = pa.table({"txt": ["x"]}) if as_parquet else [{"txt": "x"}]
    with pytest.raises(InputError, match="no column 'text', which the template reads"):
        run(rows, "{text}")


def test_a_template_beside_a_named_prompt_column_is_refused(run):
    with pytest.raises(InputError, match="makes the prompt"):
        run([{"q": "x"}], "{q}", ColumnNames(prompt="q"))
