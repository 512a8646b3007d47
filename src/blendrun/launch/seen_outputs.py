"""Output lengths that ranks have seen, and what each has been told of those of the others."""

import numpy as np

from blendrun.schedule.step.outputs import Outputs
from blendrun.tree.prefix_tree import Int32

_NOTHING = np.zeros(0, np.int32)


class SeenOutputs:
    def __init__(self, num_ranks: int) -> None:
        self._process = [0] * num_ranks  # which one it is of its rank
        self._told = [0] * num_ranks  # entries of `_ended`
        self._ended: list[tuple[tuple[int, int], Int32, Int32]] = []
        self._running: list[tuple[Int32, Int32]] = [(_NOTHING, _NOTHING)] * num_ranks

    def note(self, rank: int, ended: Int32, output: Int32, running: Int32, age: Int32) -> None:
        """Outputs of `rank`: those that have ended since the last call, and all that run."""
        if len(ended):
            self._ended.append(((rank, self._process[rank]), ended, output))
        self._running[rank] = (running, age)

    def forget_process(self, rank: int) -> None:
        """The next process of `rank` has seen nothing."""
        self._process[rank] += 1
        self._told[rank] = 0
        self._running[rank] = (_NOTHING, _NOTHING)

    def news_for(self, rank: int) -> Outputs | None:
        """What others have seen that `rank` was not told of; None: nothing."""
        me = (rank, self._process[rank])
        ended = [entry[1:] for entry in self._ended[self._told[rank] :] if entry[0] != me]
        running = [one for other, one in enumerate(self._running) if other != rank]
        self._told[rank] = len(self._ended)
        news = Outputs(*_joined(ended), *_joined(running))
        return news if len(news.ended) + len(news.running) else None


def _joined(pairs: list[tuple[Int32, Int32]]) -> tuple[Int32, Int32]:
    requests, tokens = zip(*((_NOTHING, _NOTHING), *pairs), strict=True)
    return np.concatenate(requests), np.concatenate(tokens)
