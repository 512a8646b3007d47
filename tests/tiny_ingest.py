"""Whole inputs ingested in one go, and taken through to the outputs without a model."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq

from blendrun.data.answers import answers_table
from blendrun.data.columns import ColumnNames
from blendrun.data.ingest import Ingester
from blendrun.data.outputs import write_outputs
from blendrun.data.results import ResultJournal
from blendrun.data.sampling import SamplingParams


def ingest(
    paths,
    columns,
    tokenizer,
    defaults,
    context_len,
    vocab_size,
    store_dir,
    num_rows=None,
    **options,
):
    """The first `num_rows` rows, or all, with `sources`."""
    arguments = (columns, tokenizer, defaults, context_len, vocab_size)
    with Ingester(paths, *arguments, **options) as ingester:
        rows = ingester.take(store_dir, num_rows)
        return SimpleNamespace(
            sources=ingester.sources(),
            num_rows=rows.num_rows,
            requests=rows.requests,
            rejected=rows.rejected,
            store=rows.store,
            notes=rows.notes,
        )


def through(paths, folder: Path, tokenizer, columns=ColumnNames(), context_len=50, **options):  # noqa: B008
    """What was ingested, and `outputs.parquet` of a run that answers each prompt with itself.

    Tokens are bytes; answers are journaled last row first.
    """
    result = ingest(
        list(map(str, paths)),
        columns,
        tokenizer,
        SamplingParams(),
        context_len,
        257,
        folder / "store",
        **options,
    )
    rows = result.requests["row"].to_numpy()
    with ResultJournal(folder / "run") as journal:
        for part in np.array_split(np.flip(np.arange(len(rows))), 3):
            ids = [result.store[request] for request in part]
            journal.append(
                answers_table(
                    row=rows[part],
                    output_text=["".join(map(chr, one)) for one in ids],
                    output_token_ids=ids,
                    finish_reason=["stop"] * len(part),
                    num_prompt_tokens=[len(one) for one in ids],
                    num_cached_tokens=[0] * len(part),
                )
            )
    written = write_outputs(folder / "run", result.sources, result.num_rows, result.rejected)
    return result, pq.read_table(written)
