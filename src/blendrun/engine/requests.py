"""Columns of a plan's requests as the engine reads them, by request number."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from blendrun.schedule.lengths import is_known
from blendrun.schedule.plan_file import StoredPlan
from blendrun.tree.prefix_tree import Int32, Int64, PrefixTree


@dataclass(frozen=True, slots=True)
class EngineRequests:
    """N requests; `sequence` is the planned order, everything else is by request number."""

    sequence: Int32  # [N]
    row: Int64  # [N] input row
    prompt_len: Int32
    max_tokens: Int32
    expected_output_len: Int32
    learned: npt.NDArray[np.bool_]  # its length may be learned during the run
    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float32]
    top_k: Int32
    min_p: npt.NDArray[np.float32]
    seed: Int64
    ignore_eos: npt.NDArray[np.bool_]
    stop: dict[int, tuple[str, ...]]  # only requests that have any
    prompts: tuple[Int32, Int64]  # tokens, offsets
    tree: PrefixTree
    seen: tuple[Int32, Int32]  # output lengths known before: requests alike, and tokens

    @classmethod
    def of(cls, stored: StoredPlan, ignore_eos: bool) -> "EngineRequests":
        sequence = stored.requests["request"].to_numpy()
        table = stored.requests.take(np.argsort(sequence))
        column = {name: table[name].to_numpy() for name in table.column_names if name != "stop"}
        has_stop = np.flatnonzero(pc.list_value_length(table["stop"]).to_numpy())
        return cls(
            sequence=sequence,
            row=column["row"],
            prompt_len=column["prompt_len"],
            max_tokens=column["max_tokens"],
            expected_output_len=column["expected_output_len"],
            learned=~(is_known(table) | ignore_eos),
            temperature=column["temperature"],
            top_p=column["top_p"],
            top_k=column["top_k"],
            min_p=column["min_p"],
            seed=column["seed"],
            ignore_eos=column["ignore_eos"] | ignore_eos,
            stop={int(i): tuple(table["stop"][int(i)].as_py()) for i in has_stop},
            prompts=(stored.store.tokens, stored.store.offsets),
            tree=stored.tree,
            seen=(stored.seen["request"].to_numpy(), stored.seen["output_len"].to_numpy()),
        )

    def __len__(self) -> int:
        return len(self.sequence)

    def prompt(self, request: int) -> Int32:
        """Token ids of one prompt, as a view."""
        tokens, offsets = self.prompts
        return tokens[offsets[request] : offsets[request + 1]]
