"""A tree on disk comes back whole or not at all."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendrun.errors import PlanError
from blendrun.tree.annotate import annotate
from blendrun.tree.prefix_tree import PrefixTree
from blendrun.tree.store import read_prices, read_tree, write_tree
from tiny_jobs import cost_model, tree_of

PROMPTS = [[1, 2, 3], [1, 2], [1, 2, 3], [9], [1, 2, 4, 5]]


def write(path: Path, prompts: list[list[int]] = PROMPTS) -> PrefixTree:
    tree = tree_of(prompts)
    write_tree(path, tree, annotate(tree, np.full(len(prompts), 7, np.int32), cost_model()))
    return tree


@pytest.mark.parametrize("prompts", [PROMPTS, [], [[1]], [[1] * n for n in range(1, 40)]])
def test_read_gives_back_what_was_written(prompts: list[list[int]], tmp_path: Path):
    tree = write(tmp_path / "tree.parquet", prompts)
    again = read_tree(tmp_path / "tree.parquet")
    for field in dataclasses.fields(PrefixTree):
        ours, theirs = getattr(tree, field.name), getattr(again, field.name)
        np.testing.assert_array_equal(theirs, ours)
        assert theirs.dtype == ours.dtype


def test_file_holds_the_densities_of_each_node(tmp_path: Path):
    write(tmp_path / "tree.parquet")
    table = pq.read_table(tmp_path / "tree.parquet")
    assert (table["density"].to_numpy() > 0).all()
    np.testing.assert_allclose(
        table["density"].to_numpy(), table["compute_s"].to_numpy() / table["memory_s"].to_numpy()
    )


def test_prices_come_back_as_they_were(tmp_path: Path):
    tree = write(tmp_path / "tree.parquet")
    priced = annotate(tree, np.full(len(PROMPTS), 7, np.int32), cost_model())
    again = read_prices(tmp_path / "tree.parquet")
    for field in dataclasses.fields(again):
        values = getattr(again, field.name)
        np.testing.assert_array_equal(values, getattr(priced, field.name))


@pytest.mark.parametrize("read", [read_tree, read_prices])
def test_a_missing_file_is_a_plan_error(read: Callable[[Path], object], tmp_path: Path):
    with pytest.raises(PlanError, match="cannot read the prefix tree"):
        read(tmp_path / "tree.parquet")


@pytest.mark.parametrize("keep", [0, 4, 200])
def test_a_cut_file_is_a_plan_error(keep: int, tmp_path: Path):
    path = tmp_path / "tree.parquet"
    write(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(PlanError, match="cannot read the prefix tree"):
        read_tree(path)


def test_a_file_without_a_column_is_a_plan_error(tmp_path: Path):
    path = tmp_path / "tree.parquet"
    write(path)
    pq.write_table(pq.read_table(path).drop_columns(["depth", "compute_s"]), path)
    with pytest.raises(PlanError, match="depth"):
        read_tree(path)
    with pytest.raises(PlanError, match="compute_s"):
        read_prices(path)


def replace_value(path: Path, column: str, at: int, value: int) -> None:
    table = pq.read_table(path)
    values = table[column].to_numpy().copy()
    values[at] = value
    index = table.schema.get_field_index(column)
    pq.write_table(table.set_column(index, column, pa.array(values)), path)


@pytest.mark.parametrize(
    ("column", "at", "value"),
    [("depth", 0, 3), ("depth", 1, -1), ("last_leaf", 0, 2), ("subtree_end", 0, 3)],
)
def test_damaged_values_are_a_plan_error(column: str, at: int, value: int, tmp_path: Path):
    path = tmp_path / "tree.parquet"
    write(path)
    replace_value(path, column, at, value)
    with pytest.raises(PlanError, match="prefix tree is broken"):
        read_tree(path)


@pytest.mark.parametrize(
    ("column", "at", "value"),
    [("parent", 2, 99), ("parent", 2, -50), ("first_leaf", -1, 99), ("request", -1, 99)],
)
def test_values_that_point_outside_are_a_plan_error(
    column: str, at: int, value: int, tmp_path: Path
):
    path = tmp_path / "tree.parquet"
    write(path)
    replace_value(path, column, at, value)
    with pytest.raises(PlanError):
        read_tree(path)


def test_a_request_that_occurs_twice_is_a_plan_error(tmp_path: Path):
    path = tmp_path / "tree.parquet"
    write(path)
    request = pq.read_table(path)["request"].to_numpy()
    replace_value(path, "request", int(np.argmax(request == 2)), 0)
    with pytest.raises(PlanError):
        read_tree(path)


def test_an_empty_table_is_a_plan_error(tmp_path: Path):
    path = tmp_path / "tree.parquet"
    write(path)
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    with pytest.raises(PlanError):
        read_tree(path)
