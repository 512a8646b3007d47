"""One launch of a Triton kernel as a value, which may be run or only compiled."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """A kernel with all that it is launched with.

    Wrappers make these from shapes and strides alone, so tensors on the `meta` device give the
    launches of a model without memory or a GPU.
    """

    kernel: Any  # a function under triton.jit
    grid: tuple[int, ...]
    args: dict[str, Any]  # by name of the parameter, constants included
    num_warps: int
    num_stages: int = 1  # of software pipelining

    def options(self) -> dict[str, int | bool]:
        """How the kernel is compiled, besides its arguments."""
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": True,  # Triton's default, which 3.10 changes
        }

    def run(self) -> None:
        """On the current stream of the current device, which must be that of the tensors."""
        if all(self.grid):
            self.kernel[self.grid](**self.args, **self.options())
