"""How fast are inputs read? JSON lines against other parsers, Parquet against pyarrow alone.

    python benchmarks/bench_reading.py [--megabytes 200] [--repeat 5]

Reads made-up prompts on one core and prints megabytes of file per CPU second (the best of a few
turns, which alternate), so that other work on the machine counts little; the ratios count. Reading
ends with parsed rows, or record batches; nothing is tokenized.
"""

import argparse
import gzip
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.data.json_rows import read_jsonl
from blendrun.data.jsonl_reader import read_lines
from blendrun.data.parquet_reader import read_parquet

_WORDS = ("the", "of", "answer", "model", "summary", "“quoted”", "naïve", "line\nbreak", "42", "a")


def made_up(num_bytes: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Rows of a chat, or a prompt, of 200 to 4,000 characters, and parameters."""
    rng = np.random.default_rng(seed)
    done = number = 0
    while done < num_bytes:
        text = " ".join(rng.choice(_WORDS, int(rng.integers(30, 600))).tolist())
        chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
        prompt = {"messages": chat} if number % 2 else {"prompt": text}
        yield {"id": number, **prompt, "max_tokens": 256, "temperature": 0.7}
        done += len(text) + 80
        number += 1


def write(folder: Path, num_bytes: int) -> dict[str, Path]:
    paths = {name: folder / f"rows.{name}" for name in ("jsonl", "jsonl.gz", "jsonl.zst")}
    rows = list(made_up(num_bytes))
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    paths["jsonl"].write_bytes(lines)
    paths["jsonl.gz"].write_bytes(gzip.compress(lines, 6))
    with pa.CompressedOutputStream(str(paths["jsonl.zst"]), "zstd") as packed:
        packed.write(lines)
    paths["text.parquet"], paths["ids.parquet"] = folder / "text.parquet", folder / "ids.parquet"
    texts = [row.get("prompt") or row["messages"][1]["content"] for row in rows]
    pq.write_table(pa.table({"id": range(len(rows)), "prompt": texts}), paths["text.parquet"])
    rng = np.random.default_rng(1)
    ids = pa.array([rng.integers(0, 128_000, len(t) // 4, np.int32) for t in texts])
    pq.write_table(pa.table({"prompt_token_ids": ids}), paths["ids.parquet"])
    return paths


def drain(batches: Iterator[Any]) -> None:
    for _ in batches:
        pass


def stdlib(path: Path) -> None:
    with path.open("rb") as file:
        for line in file:
            json.loads(line)


def pyarrow_batches(path: Path) -> None:
    with pq.ParquetFile(path) as file:
        drain(file.iter_batches())


def cpu_seconds(contenders: dict[str, Callable[[], None]], repeat: int) -> dict[str, float]:
    """The least CPU seconds of each."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(repeat):
        for name, run in contenders.items():
            begin = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - begin)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as name:
        paths = write(Path(name), options.megabytes * 10**6)
        plain, text, ids = paths["jsonl"], paths["text.parquet"], paths["ids.parquet"]
        size = {path: path.stat().st_size for path in paths.values()}
        contenders = {
            "JSONL, read_jsonl": lambda: drain(read_jsonl(plain)),
            "JSONL, lines alone": lambda: drain(read_lines(plain)),
            "JSONL, json of the standard library": lambda: stdlib(plain),
            "JSONL in gzip, read_jsonl": lambda: drain(read_jsonl(paths["jsonl.gz"])),
            "JSONL in zstd, read_jsonl": lambda: drain(read_jsonl(paths["jsonl.zst"])),
            "Parquet text, read_parquet": lambda: drain(read_parquet(text)),
            "Parquet text, pyarrow": lambda: pyarrow_batches(text),
            "Parquet ids, read_parquet": lambda: drain(read_parquet(ids)),
            "Parquet ids, pyarrow": lambda: pyarrow_batches(ids),
        }
        best = cpu_seconds(contenders, options.repeat)
        for name, seconds in best.items():
            path = plain if name.startswith("JSONL") else text if "text" in name else ids
            print(f"{name:<40}{size[path] / 1e6:8.0f} MB{size[path] / 1e6 / seconds:8.0f} MB/s")
        ratios = {
            f"parquet_{kind}_over_pyarrow": best[f"Parquet {kind}, read_parquet"]
            / best[f"Parquet {kind}, pyarrow"]
            for kind in ("text", "ids")
        }
        ratios["jsonl_mb_per_s"] = size[plain] / 1e6 / best["JSONL, read_jsonl"]
        print(json.dumps({name: round(value, 2) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
