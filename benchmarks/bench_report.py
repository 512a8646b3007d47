"""How long does the report of a long run take, and how much memory?

    python benchmarks/bench_report.py [--steps 1000000]

Simulates a job of mixed prompts, repeats the records of its steps until there are so many, one
after the other on the clock, and runs `blendrun report` on that run. Prints the command's seconds,
its peak resident memory, and the size of the page it made.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from tiny_runs import job_rows, simulated_run


def repeat_steps(run_dir: Path, num_steps: int) -> None:
    (path,) = (run_dir / "steps").iterdir()
    steps = pq.read_table(path)
    start_s, step_s = steps["start_s"].to_numpy(), steps["step_s"].to_numpy()
    each_s = start_s[-1] + step_s[-1]
    times = -(-num_steps // steps.num_rows)
    many = pa.concat_tables([steps] * times).slice(0, num_steps)
    later_s = np.repeat(np.arange(times) * each_s, steps.num_rows)[:num_steps]
    number = many.column_names.index("start_s")
    many = many.set_column(number, "start_s", pc.add(many["start_s"], pa.array(later_s)))
    many = many.set_column(many.column_names.index("step"), "step", pa.array(np.arange(num_steps)))
    pq.write_table(many.combine_chunks(), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=1_000_000)
    num_steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        rows = [*job_rows(20, 50, 100, 400, (10, 60)), *job_rows(3, 15, 10, 50, (600, 1500))]
        run_dir = simulated_run(Path(folder), rows)
        repeat_steps(run_dir, num_steps)
        begin = time.monotonic()
        command = [sys.executable, "-m", "blendrun", "report", str(run_dir)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - begin
        if status:
            sys.exit("blendrun report failed")
        page = run_dir / "report" / "report.html"
        print(f"{num_steps:,} steps: {seconds:.1f} s, {usage.ru_maxrss / 1024:,.0f} MiB at most")
        print(f"page: {page.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
