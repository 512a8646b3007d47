"""Start and end the other ranks of a tensor-parallel group on this machine.

Each is a process with its share of the cores. One that dies, or takes too long for its part of a
layer, is an error of the run, not a hang; when the first rank ends, however it does, so do they.
"""

import time
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize

import torch

from blendrun.cost.tensor_shards import Shard, check_tp
from blendrun.data.model_files import ModelFiles
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.devices import check_devices, choose_device
from blendrun.engine.loaded_model import LoadedModel
from blendrun.engine.settings import ExecuteSettings
from blendrun.errors import BackendError
from blendrun.launch.child import signals_held
from blendrun.launch.rendezvous import Meeting, join, open_store
from blendrun.launch.tensor_rank import READY, STARTED, RankJob, run_rank

_FOR_EVER_S = 30 * 24 * 3600.0  # a rank that is told waits until the first is gone
_DYING_S, _END_S = 2.0, 5.0


def load_model(files: ModelFiles, settings: ExecuteSettings, place: int = 0) -> LoadedModel:
    """The model on as many ranks as the settings say; its `close` ends those beside this process.

    `place` of the first of them, see `choose_device`; the others come after it.

    Raises:
        InputError: the model cannot be divided among so many or be loaded, or GPUs are too few.
        BackendError: a rank does not start.
    """
    if (settings.tp or 1) == 1:
        return LoadedModel.load(files, settings, place=place)
    ranks = _OtherRanks(files, settings, place)
    try:
        model = ranks.load(files, settings)
    except BaseException:
        ranks.close()
        raise
    return replace(model, close=ranks.close)


class _OtherRanks:
    """All processes of a group but this one."""

    def __init__(self, files: ModelFiles, settings: ExecuteSettings, place: int) -> None:
        config, size = DecoderConfig.from_hf(files.config), settings.tp or 1
        check_tp(size, config.num_heads, config.num_kv_heads, files.spec)
        check_devices(settings.device, size, 1)
        self._place = place
        self._store, self._limit_s = open_store(), settings.hang_limit_s
        self._meeting = Meeting(self._store.port, settings.hang_limit_s, settings.deterministic)
        self._size, self._threads_before = size, torch.get_num_threads()
        threads = max(1, self._threads_before // size)
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        torch.set_num_threads(threads)
        # before multiprocessing waits for them: they do not hear its SIGTERM
        self._at_exit = Finalize(None, self.close, exitpriority=1)
        meeting = self._meeting._replace(timeout_s=_FOR_EVER_S)
        context = get_context("spawn")
        with signals_held():
            for rank in range(1, size):
                here, there = context.Pipe()
                job = RankJob(
                    Shard(rank, size),
                    meeting,
                    threads,
                    files.folder,
                    config,
                    settings,
                    place + rank,
                )
                process = context.Process(target=run_rank, args=(job, there), daemon=True)
                process.start()
                there.close()
                self._processes.append(process)
                self._pipes.append(here)

    def load(self, files: ModelFiles, settings: ExecuteSettings) -> LoadedModel:
        """This rank's part, while the others load theirs."""
        self._expect(STARTED)
        try:
            device = choose_device(settings.device, self._place)
            group = join(Shard(0, self._size), self._meeting, device, self._what_became)
        except RuntimeError as error:
            raise BackendError(f"the ranks do not meet: {self._what_became()}") from error
        model = LoadedModel.load(files, settings, group, place=self._place)
        self._expect(READY)
        return model

    def close(self) -> None:
        """End them; none of them has anything to save."""
        self._at_exit.cancel()
        for pipe in self._pipes:
            pipe.close()
        end_s = time.monotonic() + _END_S
        for process in self._processes:
            process.join(max(0.0, end_s - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()
        torch.set_num_threads(self._threads_before)

    def _expect(self, word: str) -> None:
        """Waits until every rank has said `word`.

        Raises:
            BackendError: one says something else, or dies.
        """
        for rank, (process, pipe) in enumerate(
            zip(self._processes, self._pipes, strict=True), start=1
        ):
            said = ""
            if pipe in wait([pipe, process.sentinel]):
                said = _last_word(pipe)
            if said != word:
                raise BackendError(
                    f"tensor-parallel rank {rank} failed: {said or _ending(process)}"
                )

    def _what_became(self) -> str:
        """Of the ranks, after one of them did not answer."""
        ended = wait([process.sentinel for process in self._processes], _DYING_S)
        found = []
        for rank, (process, pipe) in enumerate(
            zip(self._processes, self._pipes, strict=True), start=1
        ):
            said = _last_word(pipe)
            if said or process.sentinel in ended:
                found.append(f"rank {rank}: {said or _ending(process)}")
        return "; ".join(found) or f"all of them live, and one hangs (after {self._limit_s:g} s)"


def _last_word(pipe: Connection) -> str:
    """What a rank has said; empty: nothing."""
    try:
        return str(pipe.recv()) if pipe.poll() else ""
    except (EOFError, OSError):
        return ""


def _ending(process: BaseProcess) -> str:
    """How a process ended, in a few words."""
    process.join(_DYING_S)
    code = process.exitcode
    if code is None:
        return "it does not answer"
    return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
