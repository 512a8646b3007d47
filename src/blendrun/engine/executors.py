"""Who runs the operators of a step, and in which order.

An executor may run operators at the same time, in any order in which each comes after all that its
`after` names; the tokens are the same. On a CPU all resources are the same cores, and there is
nothing to gain: the sequential executor runs there. `overlap_executor.py` has the one for GPUs.
"""

from collections.abc import Sequence
from typing import Protocol

from blendrun.engine.operators import Operator


class Executor(Protocol):
    def run(self, operators: Sequence[Operator]) -> None:
        """Run all of a step's operators; what one raises comes out, and no other begins then."""
        ...


class SequentialExecutor:
    """One operator after the other, in the order of the list."""

    def run(self, operators: Sequence[Operator]) -> None:
        for operator in operators:
            operator.run()
