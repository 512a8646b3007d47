"""Outputs of other batchers of the same job, from which lengths are learned, too."""

from dataclasses import dataclass

from blendrun.tree.prefix_tree import Int32


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """Those that ended since the last time one was told, and all that run: without these, the
    ones that end first, which are the short ones, would stand for all."""

    ended: Int32  # [E] requests
    ended_output: Int32  # [E] tokens
    running: Int32  # [R] requests
    age: Int32  # [R] output tokens so far
