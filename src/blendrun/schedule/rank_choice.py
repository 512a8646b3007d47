"""How many tensor- and data-parallel ranks a job is planned for, where nobody says.

Of the sizes that divide the model's heads, each with as many data-parallel ranks as the devices
allow, the one with the lowest predicted time; with equal times the one with fewest devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from blendrun.cost import machine
from blendrun.cost.cost_model import CostModel, Flavour
from blendrun.cost.hardware import HardwareProfile
from blendrun.cost.model_shape import ModelShape
from blendrun.cost.tensor_shards import valid_tp_sizes
from blendrun.data.ingest import Ingested
from blendrun.errors import CapacityError, InputError
from blendrun.schedule.estimate import least_s
from blendrun.schedule.lengths import ExpectedLengths
from blendrun.schedule.priced_job import PricedJob
from blendrun.schedule.settings import AUTO, Auto
from blendrun.tree.prefix_tree import PrefixTree
from blendrun.units import count_of, format_seconds


@dataclass(frozen=True, slots=True)
class RankChoice:
    tp: int
    dp: int
    reason: str = ""  # empty: a person has chosen


@dataclass(frozen=True, slots=True)
class RanksWanted:
    """What was asked for; with `AUTO` for one or both, `devices` bounds their product."""

    tp: int | Auto
    dp: int | Auto
    devices: int | None  # None: those of this machine

    def choose(
        self,
        rows: Ingested,
        tree: PrefixTree,
        lengths: ExpectedLengths,
        shape: ModelShape,
        hardware: HardwareProfile,
        flavour: Flavour,
    ) -> RankChoice:
        """The pair for a job.

        Raises:
            CapacityError: no size leaves memory for KV pages.
            InputError: the number of devices is not known, or too small.
        """
        if self.tp != AUTO and self.dp != AUTO:
            return RankChoice(self.tp, self.dp)
        devices = self.devices or _devices_here(hardware)
        pairs = self._pairs(shape, devices, max(tree.num_requests, 1))
        found: list[tuple[float, int, int]] = []
        no_room: list[int] = []
        for tp, dp in pairs:
            cost = CostModel.of_group(shape, hardware, tp, flavour)
            longest = int((tree.prompt_len + lengths.tokens).max(initial=1))
            if cost.kv_capacity_tokens < longest:
                no_room.append(tp)
            else:
                job = PricedJob(rows, tree, lengths, cost, dp)
                found.append((least_s(job), tp, dp))
        if not found:
            raise CapacityError(
                f"{shape.name} leaves too little memory for KV pages on {hardware.name} with "
                f"tp {', '.join(map(str, no_room))}",
                "take a smaller model, more devices (--devices) or hardware with more memory",
            )
        found.sort(key=lambda one: (one[0], one[1] * one[2]))
        return RankChoice(*found[0][1:], _reason(found, no_room, devices))

    def _pairs(self, shape: ModelShape, devices: int, most_dp: int) -> list[tuple[int, int]]:
        valid = valid_tp_sizes(shape.num_heads, shape.num_kv_heads)
        sizes = valid if self.tp == AUTO else (self.tp,)
        pairs = []
        for tp in sizes:
            dp = min(devices // tp, most_dp) if self.dp == AUTO else self.dp
            if dp >= 1 and tp * dp <= devices:
                pairs.append((tp, dp))
        if not pairs:
            raise InputError(
                f"--tp {self.tp} --dp {self.dp} takes more than {count_of(devices, 'device')}",
                "give more with --devices, or fewer ranks",
            )
        return pairs


def _devices_here(hardware: HardwareProfile) -> int:
    if hardware.kind == "cpu":
        return 1
    here = sum(name in hardware.device_names for name in machine.gpu_names())
    if not here:
        raise InputError(
            f"this machine has no {hardware.name}: how many devices will there be?",
            "--devices N, or numbers for --tp and --dp",
        )
    return here


def _reason(found: Sequence[tuple[float, int, int]], no_room: Sequence[int], devices: int) -> str:
    """Why the first of `found` was taken: [(seconds, tp, dp)], fastest first."""
    text = f"fastest on {count_of(devices, 'device')}, {format_seconds(found[0][0])}"
    if len(found) > 1:
        others = ", ".join(f"tp {tp} dp {dp} {format_seconds(s)}" for s, tp, dp in found[1:])
        text += f"; {others}"
    if no_room:
        text += f"; too little memory with tp {', '.join(map(str, no_room))}"
    return text
