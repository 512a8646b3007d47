"""The activations of a part of a step, on their way through the layers."""

from dataclasses import dataclass, field

from torch import Tensor

from blendrun.engine.attend import Attend
from blendrun.engine.operators import Resource


@dataclass(slots=True)
class StepPart:
    """T tokens of whole sequences. An operator takes what the one before it left, and replaces it.

    `attention` is the resource that bounds its attention: memory where decodes are most of it.
    """

    token_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T], of each token in its own sequence
    attend: Attend
    rows: Tensor | None = None  # int64 [R], tokens that need logits; None: all T
    attention: Resource = "memory"
    cos: Tensor = field(init=False)
    sin: Tensor = field(init=False)
    hidden: Tensor = field(init=False)  # [T, H] the residual stream
    branch: Tensor | None = field(init=False)  # [T, H] what it still lacks; the next norm adds it
    x: Tensor = field(init=False)  # what the next operator reads; at the end [R, H], normalised

    def made(self) -> tuple[Tensor, ...]:
        """What operators have left here so far."""
        names = ("x", "hidden", "branch", "cos", "sin")
        made = (getattr(self, name, None) for name in names)
        return tuple(tensor for tensor in made if tensor is not None)
