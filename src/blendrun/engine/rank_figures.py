"""What one of several ranks says of itself, as plain numbers for the coordinator."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blendrun.tree.prefix_tree import Int32


@dataclass(frozen=True, slots=True, eq=False)
class RankFigures:
    running: int
    waiting: int
    # of what is left to do, as its batcher expects; no less than reading the weights in each step
    # until the last running request ends
    compute_s: float
    memory_s: float  # KV reads, likewise
    stepped_s: float  # steps so far took so long, …
    expected_s: float  # … and should have taken this long
    output_tokens: int  # so far
    learning: Int32  # running requests whose lengths are learned, …
    learning_age: Int32  # … and their output tokens so far
    mean_len: npt.NDArray[np.float64]  # [S] expected output of a stratum's requests; 0: unlearned
