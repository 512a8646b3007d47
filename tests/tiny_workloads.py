"""Small sets, traces and workloads."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from blendrun.cost.cost_model import CostModel
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.workloads.assemble import assemble
from blendrun.workloads.drawn import Drawn
from blendrun.workloads.prompt_tokens import prompt_pieces
from blendrun.workloads.workload import Workload

SHARED_TRACES = "shared/data/traces"


def paper_cost() -> CostModel:
    shape, hardware = ModelShape.load("llama-3.1-8b"), HardwareProfile.load("a100-80gb-sxm")
    return CostModel(shape, hardware, flavour="paper")


def write_trace(path: Path, rows: Sequence[tuple[int, int]]) -> Path:
    """A length trace of (input, output) tokens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = zip(("input_tokens", "output_tokens"), zip(*rows, strict=True), strict=True)
    pq.write_table(pa.table({name: pa.array(v, pa.int32()) for name, v in columns}), path)
    return path


def write_azure_traces(folder: Path) -> Path:
    """Two small traces under the names of the default set burst."""
    random = np.random.default_rng(5)
    for name, mean in (("azure_code", 20), ("azure_conv", 100)):
        rows = zip(random.integers(500, 3500, 300), random.integers(1, 2 * mean, 300), strict=True)
        write_trace(folder / f"{name}.parquet", [(int(p), int(d)) for p, d in rows])
    return folder


def shared_traces() -> Path | None:
    """The folder of real length traces beside the repository, if there is one."""
    found = (p / SHARED_TRACES for p in Path(__file__).parents)
    return next((path for path in found if path.is_dir()), None)


def drawn(
    own_len: Sequence[int],
    group: Sequence[int] | None = None,
    group_depth: Sequence[int] = (4,),
    system_len: int = 4,
    output_len: Sequence[int] | None = None,
) -> Drawn:
    columns = (own_len, output_len or [3] * len(own_len), group or [0] * len(own_len), group_depth)
    return Drawn(*(np.array(column, np.int32) for column in columns), system_len)


def workload_of(*sets: Drawn, vocab_size: int = 1000, seed: int = 0) -> Workload:
    return assemble([f"set{i}" for i in range(len(sets))], sets, vocab_size, seed)


def prompts_of(workload: Workload, piece_tokens: int = 64) -> list[list[int]]:
    """All prompts, made in small pieces."""
    return [
        piece.tokens[piece.offsets[i] : piece.offsets[i + 1]].tolist()
        for piece in prompt_pieces(workload, piece_tokens)
        for i in range(piece.last - piece.first)
    ]


@st.composite
def small_sets(draw: st.DrawFn) -> Drawn:
    """Up to six requests, with or without a system prompt and groups that share more."""
    num_requests = draw(st.integers(0, 6))
    system_len = draw(st.integers(0, 3))
    longer = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    own = draw(st.lists(st.integers(1, 4), min_size=num_requests, max_size=num_requests))
    group = draw(
        st.lists(st.integers(0, len(longer) - 1), min_size=num_requests, max_size=num_requests)
    )
    return drawn(own, group, [system_len + more for more in longer], system_len)
