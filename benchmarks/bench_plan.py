"""How long does a plan take, and how much memory? From a Parquet file of token ids to plan.json.

    python benchmarks/bench_plan.py [--requests 100000,1000000] [--folder DIR]
        [--text PROMPTS [--model CHECKPOINT] [--text-rows 30000]]

The prompts have 512 tokens on average: 57 groups with a prefix each, unique prompts, and chats of
three growing turns under one system prompt, in random order. Memory is the peak of the whole
process, with the mapped token store in it. With `--text`, rows of text and chats, repeated with a
number before each, are read, rendered and tokenized, beside the `tokenizers` library alone on the
same texts, in turn.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from peers.job import demo_model
from tokenizers import Tokenizer

from blendrun.data.columns import ColumnNames
from blendrun.data.ingest import Ingester
from blendrun.data.model_files import resolve_model
from blendrun.data.sampling import SamplingParams
from blendrun.data.tokenizer import PromptTokenizer

VOCAB = 128_000
MODEL = Path(__file__).parents[1] / "configs/models/llama-3.1-8b.toml"
_GROUPS, _GROUP_PREFIX, _GROUP_OWN = 57, 400, 112
_SYSTEM, _TURN = 300, 106
_PIECE = 50_000


@dataclass(frozen=True, slots=True)
class Planned:
    requests: int
    tokens: int
    wall_s: float
    peak_bytes: int
    store_bytes: int

    def line(self) -> str:
        return (
            f"{self.requests:>9,} requests  {self.tokens / 1e6:8.1f} M tokens  {self.wall_s:6.1f} s"
            f"  peak {self.peak_bytes / 2**30:5.2f} GiB"
            f" = {self.peak_bytes / self.store_bytes:.2f} x the token store"
        )


def write_prompts(path: Path, requests: int, seed: int = 0) -> None:
    """`requests` rows of `prompt_token_ids`, a third of each kind, shuffled."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, VOCAB, (_GROUPS, _GROUP_PREFIX), np.int32)
    system = rng.integers(0, VOCAB, _SYSTEM, np.int32)
    kind = rng.permutation(np.arange(requests) % 3)
    chat_of = np.cumsum(kind == 2)  # the n-th chat row; three of them are one chat
    schema = pa.schema([("prompt_token_ids", pa.list_(pa.int32()))])
    with pq.ParquetWriter(path, schema, compression="snappy") as writer:
        for first in range(0, requests, _PIECE):
            rows = range(first, min(first + _PIECE, requests))
            prompts = [_prompt(int(kind[i]), int(chat_of[i]), groups, system, rng) for i in rows]
            offsets = np.cumsum([0, *map(len, prompts)]).astype(np.int32)
            column = pa.ListArray.from_arrays(offsets, np.concatenate(prompts))
            writer.write_table(pa.table([column], schema), row_group_size=_PIECE)


def _prompt(kind: int, chat: int, groups, system, rng):  # type: ignore[no-untyped-def]
    if kind == 0:
        own = rng.integers(0, VOCAB, rng.integers(1, 2 * _GROUP_OWN), np.int32)
        return np.concatenate([groups[rng.integers(_GROUPS)], own])
    if kind == 1:
        return rng.integers(0, VOCAB, rng.integers(24, 1000), np.int32)
    turns = np.random.default_rng([1, chat // 3]).integers(0, VOCAB, 3 * _TURN, np.int32)
    return np.concatenate([system, turns[: _TURN * (chat % 3 + 1)]])


def plan(prompts: Path, folder: Path, *more: str) -> Planned:
    """Runs `blendrun plan` as a process of its own."""
    output = folder / "plan.json"
    command = ["-m", "blendrun", "plan", str(prompts), "-o", str(output), *more]
    begin = time.monotonic()
    process = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, *command])
    _, status, usage = os.wait4(process, 0)
    wall_s = time.monotonic() - begin
    if status:
        raise SystemExit(f"blendrun plan failed with {os.waitstatus_to_exitcode(status)}")
    counts = json.loads(output.read_bytes())["counts"]
    store = sum(f.stat().st_size for f in (folder / "plan.data").glob("*.npy"))
    return Planned(
        counts["requests"], counts["prompt_tokens"], wall_s, usage.ru_maxrss * 1024, store
    )


def compare_tokenizers(prompts: Path, model: str, num_rows: int, folder: Path) -> dict[str, float]:
    """Seconds for the same rows: read to token store, and the library on texts in memory."""
    files = resolve_model(model, weights=False)
    tokenizer = PromptTokenizer.from_folder(files.folder)
    table = pq.read_table(prompts)
    names = [name for name in ("prompt", "messages") if name in table.column_names]
    rows = [
        {name: row[name] for name in names if row[name] is not None}
        for row in table.select(names).to_pylist()
    ]
    rows = [_numbered(rows[i % len(rows)], i) for i in range(num_rows)]
    path = folder / "text.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    texts = [
        (row["prompt"], True)
        if "prompt" in row
        else (tokenizer.render_chat(row["messages"]), False)
        for row in rows
    ]
    alone = Tokenizer.from_file(str(files.folder / "tokenizer.json"))
    best = {"blendrun_s": np.inf, "tokenizers_s": np.inf}
    for _ in range(3):
        begin = time.monotonic()
        arguments = (ColumnNames(), tokenizer, SamplingParams(), 10**6, tokenizer.vocab_size)
        with Ingester([str(path)], *arguments) as ingester:
            taken = ingester.take(folder / "store")
        best["blendrun_s"] = min(best["blendrun_s"], time.monotonic() - begin)
        begin = time.monotonic()
        total = 0
        for special in (True, False):
            for start in range(0, len(texts), 4096):
                batch = [text for text, plain in texts[start : start + 4096] if plain is special]
                encoded = alone.encode_batch_fast(batch, add_special_tokens=special)
                total += sum(len(encoding) for encoding in encoded)
        best["tokenizers_s"] = min(best["tokenizers_s"], time.monotonic() - begin)
    if total != len(taken.store.tokens):
        raise SystemExit(f"{len(taken.store.tokens)} tokens, but {total} by the library alone")
    return best | {"rows": num_rows, "tokens": total, "bytes": path.stat().st_size}


def _numbered(row: dict, number: int) -> dict:  # type: ignore[type-arg]
    if "prompt" in row:
        return {"prompt": f"{number}. {row['prompt']}"}
    first, *others = row["messages"]
    return {"messages": [{**first, "content": f"{number}. {first['content']}"}, *others]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", default="100000,1000000")
    parser.add_argument("--folder", type=Path, help="where prompt files are kept and found again")
    parser.add_argument("--dp", default="1")
    parser.add_argument("--text", type=Path, help="file of text and chats")
    parser.add_argument("--text-rows", type=int, default=30_000)
    parser.add_argument("--model", help="checkpoint whose tokenizer is taken; default: the demo's")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        results = []
        for requests in map(int, filter(None, options.requests.split(","))):
            prompts = folder / f"prompts-{requests}.parquet"
            if not prompts.is_file():
                write_prompts(prompts, requests)
            flags = ("--model", str(MODEL), "--hardware", "paper-a100", "--dp", options.dp)
            results.append(plan(prompts, Path(scratch), *flags))
            print(results[-1].line(), flush=True)
        record: dict[str, object] = {"plans": [asdict(result) for result in results]}
        if options.text:
            model = options.model or str(demo_model())
            text = compare_tokenizers(options.text, model, options.text_rows, Path(scratch))
            print(
                f"{text['rows']:,} rows of text, {text['tokens'] / 1e6:.1f} M tokens: "
                f"{text['blendrun_s']:.2f} s; tokenizers alone {text['tokenizers_s']:.2f} s = "
                f"{text['tokenizers_s'] / text['blendrun_s']:.0%}"
            )
            record["text"] = text
        print(json.dumps(record))


if __name__ == "__main__":
    main()
