"""Whole inputs ingested in one go."""

from types import SimpleNamespace

from blendrun.data.ingest import Ingester


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
