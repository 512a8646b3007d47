"""How long the batcher's decision takes inside the real engine, with a thousand requests running.

    make bench-decide
    python benchmarks/bench_decide.py --running 1000 --requests 4000

Runs a job of random token ids through `blendrun plan` and `blendrun execute` on a tiny model, so
that nothing but the decision is large, and reads `decide_s` of the steps.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from blendrun.data.results import read_steps

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))


def prompts(path: Path, num_requests: int, seed: int) -> None:
    """Shared prefixes of 40 groups, own tokens, outputs of 40 to 600 tokens."""
    rng = np.random.default_rng(seed)
    prefix = [rng.integers(3, 90, 30).tolist() for _ in range(40)]
    ids = [[*prefix[i % 40], *rng.integers(3, 90, 12).tolist()] for i in range(num_requests)]
    table = pa.table(
        {
            "prompt_token_ids": pa.array(ids, pa.list_(pa.int32())),
            "max_tokens": pa.array(rng.integers(40, 600, num_requests), pa.int32()),
        }
    )
    pq.write_table(table, path)


def blendrun(*words: object) -> None:
    subprocess.run([Path(sys.executable).with_name("blendrun"), *map(str, words)], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--running", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--policies", default="blend,blendserve,dfs")
    options = parser.parse_args()
    from tiny_models import make_checkpoint

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_checkpoint(folder / "model", max_position_embeddings=1024)
        prompts(folder / "job.parquet", options.requests, seed=0)
        for policy in options.policies.split(","):
            plan, run = folder / f"{policy}.json", folder / f"{policy}.run"
            blendrun("plan", folder / "job.parquet", "-o", plan, "--model", model,
                     "--policy", policy, "--ignore-eos")  # fmt: skip
            blendrun("execute", plan, "--run-dir", run, "--max-seqs", options.running + 24)
            steps = read_steps(run)
            decide_us = 1e6 * steps["decide_s"].to_numpy()
            busy = steps["running"].to_numpy() >= options.running
            found = {
                "policy": policy,
                "steps": int(busy.sum()),
                "mean_us": round(float(decide_us[busy].mean()), 1),
                "p99_us": round(float(np.quantile(decide_us[busy], 0.99)), 1),
                "largest_us": round(float(decide_us[busy].max()), 1),
            }
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
