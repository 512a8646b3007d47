"""Executors that overlap, for tests, and a decoder that computes every step in several parts."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from threading import Condition, Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blendrun.engine.decoder import Decoder
from blendrun.engine.operators import Operator
from blendrun.engine.step_part import StepPart


class RandomOrder:
    """One operator at a time, in a random order of those that `after` allows."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.num_turns = 0  # from one part to another

    def run(self, operators: Sequence[Operator]) -> None:
        waiting, done, part = list(range(len(operators))), set(), None
        while waiting:
            ready = [i for i in waiting if done.issuperset(operators[i].after)]
            chosen = self._random.choice(ready)
            operators[chosen].run()
            waiting.remove(chosen)
            done.add(chosen)
            self.num_turns += part is not None and part != operators[chosen].part
            part = operators[chosen].part


class ThreadPerResource:
    """A thread for each resource; each takes the first operator of its kind that is ready."""

    def run(self, operators: Sequence[Operator]) -> None:
        changed, done, failed = Condition(), set(), []
        waiting = {
            resource: [i for i, o in enumerate(operators) if o.resource == resource]
            for resource in {o.resource for o in operators}
        }

        def work(mine: list[int]) -> None:
            with torch.inference_mode():
                while mine and not failed:
                    with changed:
                        ready = [i for i in mine if done.issuperset(operators[i].after)]
                        if not ready:
                            changed.wait()
                            continue
                    try:
                        operators[ready[0]].run()
                    except Exception as error:
                        failed.append(error)
                    with changed:
                        mine.remove(ready[0])
                        done.add(ready[0])
                        changed.notify_all()

        threads = [Thread(target=work, args=(mine,)) for mine in waiting.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]


class LastPartFirst:
    """Keeps the order within a part and no other: what `after` is there to forbid."""

    def run(self, operators: Sequence[Operator]) -> None:
        for operator in sorted(operators, key=lambda o: -o.part):
            operator.run()


class PartsDecoder(Decoder):
    """Computes a step in parts of about equally many sequences."""

    num_parts = 3

    def forward(
        self, token_ids: Tensor, positions: Tensor, attend: Any, rows: Tensor | None = None
    ) -> Tensor:
        num_seqs = len(attend.plan.context_len)
        cuts = np.unique(np.linspace(0, num_seqs, self.num_parts + 1).round().astype(int))
        parts = [
            _part(token_ids, positions, attend, rows, int(a), int(b)) for a, b in pairwise(cuts)
        ]
        self._executor.run(self.operators(parts))
        return torch.cat([part.x for part in parts])


def _part(
    token_ids: Tensor, positions: Tensor, attend: Any, rows: Tensor | None, first: int, last: int
) -> StepPart:
    """Sequences [first, last) of a step."""
    whole, runner = attend.plan, attend.runner
    begin, end = int(whole.q_indptr[first]), int(whole.q_indptr[last])
    token_idx, slots = attend.writes.token_idx, attend.writes.slots
    mine = (token_idx >= begin) & (token_idx < end)
    only = replace(
        attend,
        writes=runner._attention.plan_writes(token_idx[mine] - begin, slots[mine]),
        plan=runner._attention.plan(
            runner._k_cache[0],
            whole.q_shape[1],
            whole.q_indptr[first : last + 1] - begin,
            whole.context_len[first:last],
            whole.page_table[first:last],
            whole.scale,
        ),
    )
    if rows is not None:
        rows = rows[(rows >= begin) & (rows < end)] - begin
    return StepPart(token_ids[begin:end], positions[begin:end], only, rows)
