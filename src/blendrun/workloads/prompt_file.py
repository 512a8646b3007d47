"""Prompt files of a workload, as `blendrun plan` reads them; written piece by piece.

The true output lengths go to a column that a plan does not look at unless it is named.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.data.answers import OUTPUT_COLUMNS
from blendrun.data.columns import PARAM_COLUMNS, ColumnNames
from blendrun.data.disk import atomic_file
from blendrun.data.sources import Format, format_of
from blendrun.errors import InputError
from blendrun.workloads.prompt_tokens import PromptPiece, prompt_pieces

if TYPE_CHECKING:
    from blendrun.workloads.workload import Workload

LENGTH_COLUMN = "true_output_len"
_PLAN = ColumnNames()


def prompt_format(path: Path) -> Format:
    """Kind of a prompt file to write.

    Raises:
        InputError: it cannot be told from the name, or is not written here.
    """
    if path.suffix.lower() in (".gz", ".zst"):
        raise InputError(f"{path}: compressed files are not written", "name it .parquet or .jsonl")
    return format_of(path)


def check_length_column(name: str) -> None:
    """Raises InputError where another column needs `name`."""
    taken = {"id", "set", _PLAN.prompt, _PLAN.messages, _PLAN.token_ids, _PLAN.max_tokens}
    if not name or name in taken | {*PARAM_COLUMNS, *OUTPUT_COLUMNS}:
        raise InputError(f"the true lengths cannot stand in a column {name!r}", "choose another")


def write_prompts(workload: "Workload", path: Path, length_column: str = LENGTH_COLUMN) -> None:
    """Write one row per request in order of arrival: Parquet or JSON lines, by the file's name.

    Columns: `id`, `set`, `prompt_token_ids`, `max_tokens`, and the true output length in
    `length_column`. The file appears under its name when it is complete.

    Raises:
        InputError: a file or column name that cannot be used.
        CapacityError: the disk is full.
    """
    write = {"parquet": _write_parquet, "jsonl": _write_jsonl}[prompt_format(path)]
    check_length_column(length_column)
    with atomic_file(path) as file:
        write(workload, file, length_column)


def _write_parquet(workload: "Workload", file: BinaryIO, length_column: str) -> None:
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("set", pa.string()),
            (_PLAN.token_ids, pa.list_(pa.int32())),
            (_PLAN.max_tokens, pa.int32()),
            (length_column, pa.int32()),
        ]
    )
    options = {"compression": "zstd", "use_dictionary": ["set"]}  # token ids are random
    with pq.ParquetWriter(file, schema, **options) as writer:
        for piece in prompt_pieces(workload):
            rows = slice(piece.first, piece.last)
            ids, sets = _names(workload, piece)
            prompts = pa.ListArray.from_arrays(piece.offsets.astype(np.int32), piece.tokens)
            lengths = workload.max_tokens[rows], workload.output_len[rows]
            columns = [pa.array(ids), pa.array(sets), prompts, *map(pa.array, lengths)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), len(ids))


def _write_jsonl(workload: "Workload", file: BinaryIO, length_column: str) -> None:
    for piece in prompt_pieces(workload):
        ids, sets = _names(workload, piece)
        for i, (name, set_name) in enumerate(zip(ids, sets, strict=True)):
            row = {
                "id": name,
                "set": set_name,
                _PLAN.token_ids: piece.tokens[piece.offsets[i] : piece.offsets[i + 1]].tolist(),
                _PLAN.max_tokens: int(workload.max_tokens[piece.first + i]),
                length_column: int(workload.output_len[piece.first + i]),
            }
            file.write(json.dumps(row).encode() + b"\n")


def _names(workload: "Workload", piece: PromptPiece) -> tuple[list[str], list[str]]:
    """Ids and set names of the requests of a piece."""
    rows = slice(piece.first, piece.last)
    sets = [workload.set_names[i] for i in workload.set_idx[rows].tolist()]
    numbers = workload.number[rows].tolist()
    return [f"{name}-{n:06d}" for name, n in zip(sets, numbers, strict=True)], sets
