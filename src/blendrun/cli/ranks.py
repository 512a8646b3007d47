"""Which ranks a command wants, and how they are started."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blendrun.errors import InputError
from blendrun.schedule.plan_file import read_header

if TYPE_CHECKING:
    from blendrun.engine.attempt import RunEvents
    from blendrun.engine.settings import ExecuteSettings
    from blendrun.launch.rank_group import RankGroup

LOCAL, RAY = "local", "ray"
_ENGINES = {
    "native": "blendrun.launch.torch_engine:open_engine",
    "vllm": "blendrun.launch.vllm_engine:open_engine",
}


@dataclass(frozen=True, slots=True)
class RankFlags:
    dp: int | None = None  # data-parallel ranks; None: as many as the plan was made for
    launcher: str = LOCAL
    ray_address: str | None = None  # None: where Ray finds a cluster by itself

    def __post_init__(self) -> None:
        if self.dp is not None and self.dp < 1:
            raise InputError(
                f"--dp must be at least 1, not {self.dp}",
                "leave it out to have as many as the plan",
            )
        if self.launcher not in (LOCAL, RAY):
            raise InputError(f"--launcher must be one of {LOCAL}, {RAY}, not {self.launcher}")
        if self.ray_address is not None and self.launcher != RAY:
            raise InputError("--ray-address is of no use here", f"add --launcher {RAY}")

    @classmethod
    def of(cls, dp: int | None, launcher: str | None, ray_address: str | None) -> "RankFlags":
        """Flags as they were given. Raises InputError also where Ray is wanted and not there."""
        flags = cls(dp, launcher or LOCAL, ray_address)
        if flags.launcher == RAY:
            from blendrun.launch.ray_cluster import check_ray

            check_ray()
        return flags

    def number(self, plan: Path) -> int:
        """Of data-parallel ranks."""
        return self.dp or read_header(plan)[0].dp

    @contextmanager
    def group(
        self, num_ranks: int, settings: "ExecuteSettings", events: "RunEvents"
    ) -> Iterator["RankGroup | None"]:
        """The ranks, connected to what starts them; None: this process does the work.

        vLLM always has a process of its own, which can die and be started again.

        Raises:
            InputError: no cluster is there, or it is too small.
        """
        from blendrun.launch.rank_group import RankGroup

        engine = _ENGINES[settings.engine]
        if self.launcher == RAY:
            from blendrun.engine.devices import takes_gpu
            from blendrun.launch.ray_ranks import RayLauncher

            if settings.engine == "native" and takes_gpu(settings.device):
                raise InputError("ranks of Ray are for CPUs so far", "--device cpu")
            with closing(RayLauncher(num_ranks, self.ray_address, events.note)) as launcher:
                yield RankGroup(launcher, num_ranks, engine)
        elif num_ranks > 1 or settings.engine != "native":
            from blendrun.launch.local import LocalLauncher

            yield RankGroup(LocalLauncher(num_ranks), num_ranks, engine)
        else:
            yield None
