"""What the ranks of a tensor-parallel group do that do not decide: as they are told."""

import torch

from blendrun.engine import rank_memory
from blendrun.engine.compute import Compute
from blendrun.engine.decoder import Decoder
from blendrun.engine.step_inputs import STEP, StepInputs
from blendrun.engine.step_runner import PAGES, KvPages, StepRunner
from blendrun.errors import BackendError


@torch.inference_mode()
def follow(decoder: Decoder, compute: Compute) -> None:
    """Compute the steps that the first rank tells, until it is gone.

    Raises:
        BackendError: the first rank, or another one, does not answer.
    """
    group, runner = decoder.group, None
    while True:
        message = group.hear()
        if message.kind == rank_memory.MEMORY:
            rank_memory.answer(decoder, message)
        elif message.kind == PAGES:
            runner = None  # its KV tensors make room for the next ones
            pages = KvPages.of(message)
            runner = StepRunner(decoder, compute.attention, pages, compute.lanes)
        elif message.kind == STEP and runner is not None:
            _compute(runner, StepInputs.of(message))
        else:
            raise BackendError(f"the first rank tells something unknown: {message.kind}")


def _compute(runner: StepRunner, step: StepInputs) -> None:
    to_draw, to_score = runner.forward(step)
    for _ in runner.prompt_logits(to_score):
        pass
    runner.next_tokens(to_draw, step)
