import numpy as np
import pytest
import torch

from blendrun.kernels.cpu import calls, linear
from blendrun.kernels.cpu.build import Built
from blendrun.kernels.cpu.calls import Call, Calls
from blendrun.kernels.cpu.linear import LinearCall

pytestmark = pytest.mark.skipif(
    not (calls.can_run() and linear.is_fast()), reason="no compiled kernels, or slow ones"
)


def test_calls_are_made_in_order_with_what_their_arguments_say_then():
    x = torch.randn(3, 64).bfloat16()
    weights = [torch.randn(64, 64).bfloat16() for _ in range(2)]
    panels = [linear.pack(weight) for weight in weights]
    middle, out = torch.empty(3, 64).bfloat16(), torch.empty(3, 64).bfloat16()
    made = np.zeros(2, np.dtype(LinearCall))
    for call, source, to in zip(made, (x, middle), (middle, out), strict=True):
        call["x"], call["out"], call["num_rows"] = source.data_ptr(), to.data_ptr(), 3
        call["x_row_stride"] = call["out_width"] = 64
        call["num_words"], call["num_panels"], call["num_threads"] = 32, len(panels[0]), 1
    made["panels"] = [each.data_ptr() for each in panels]
    kernel = ("linear", "blendrun_linear_bf16")
    both = Calls([Call(*kernel, made[i : i + 1], is_timed=i == 0) for i in range(2)])
    for _ in range(2):
        assert both.run() > 0
        assert torch.equal(out, linear.linear(linear.linear(x, panels[0]), panels[1]))
        made["panels"] = made["panels"][::-1].copy()
        panels.reverse()


def test_what_is_not_timed_takes_no_time():
    assert Calls([]).run() == 0.0


def test_a_kernel_that_is_not_compiled_is_refused(monkeypatch: pytest.MonkeyPatch):
    missing = Built(None, "no compiler")
    monkeypatch.setattr(calls, "library", lambda _: missing)
    assert not calls.can_run()
    with pytest.raises(ValueError, match="calls is not compiled"):
        Calls([])
