"""What one of several ranks says of itself, as plain numbers for the coordinator."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blendrun.schedule.step.outputs import Outputs


@dataclass(frozen=True, slots=True, eq=False)
class RankFigures:
    running: int
    waiting: int
    compute_s: float  # of what is left to do, as its batcher expects, …
    memory_s: float  # … KV reads, likewise, …
    least_s: float  # … and reading the weights in each step until the last running request ends
    is_learning: bool  # too little has ended for some of that to mean much
    room: int  # tokens for which KV pages are to be had
    stepped_s: float  # steps so far took so long, …
    expected_s: float  # … and should have taken this long
    output_tokens: int  # so far
    mean_len: npt.NDArray[np.float64]  # [S] expected output of a stratum's requests; 0: unlearned
    outputs: Outputs  # since its process began
