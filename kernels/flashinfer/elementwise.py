"""Norms and activation through FlashInfer, with the signatures of `kernels.cpu`.

Nothing is launched over no rows, which a GPU refuses: a step of unfinished prompts draws nothing.
"""

from dataclasses import dataclass

from torch import Tensor

from blendrun.kernels.flashinfer.library import FlashInfer


@dataclass(frozen=True, slots=True)
class FlashInferElementwise:
    library: FlashInfer

    def add_rms_norm(
        self, hidden: Tensor, branch: Tensor | None, weight: Tensor, eps: float
    ) -> Tensor:
        """As `kernels.cpu.rms_norm.add_rms_norm`; `branch` is overwritten and returned.

        The norm may take the sum before it is rounded to the dtype.
        """
        if not len(hidden):
            return hidden.new_empty(hidden.shape)
        if branch is None:
            normed: Tensor = self.library.rmsnorm(hidden, weight, eps)
            return normed
        self.library.fused_add_rmsnorm(branch, hidden, weight, eps)
        return branch

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """As `kernels.cpu.silu_mul.silu_mul`."""
        if not len(gate_up):
            return gate_up.new_empty(0, gate_up.shape[1] // 2)
        inner: Tensor = self.library.silu_and_mul(gate_up)
        return inner
