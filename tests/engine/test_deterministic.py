"""Logits that are the same to the last bit, whatever else runs and however it is cut."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional as F

from blendrun.data.manifest import read_manifest
from blendrun.data.model_files import resolve_model
from blendrun.data.results import read_steps
from blendrun.engine import decoder as decoder_module
from blendrun.engine.decoder import Decoder
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.deterministic import check_deterministic
from blendrun.engine.drawing import TokenDrawer
from blendrun.engine.row_blocks import ROW_BLOCK
from blendrun.engine.weights import load_weights
from blendrun.errors import BackendError, InputError, PlanError
from blendrun.kernels.cpu.attention import CpuAttention
from blendrun.kernels.cpu.library import BACKEND_VARIABLE
from blendrun.report.report import make_report
from tiny_jobs import execute, plan_job
from tiny_models import make_checkpoint

TEXT = "question: what is the sum of 12 and 30? answer: the sum is 42, because 12 + 30 = 42. "
ROWS: list[dict[str, Any]] = [
    {"prompt": TEXT * 3 + f"the {i} fox jumps"[: 8 + i], "max_tokens": 3 + i % 4} for i in range(6)
] + [{"prompt": TEXT[:i], "temperature": 1.0} for i in (1, 17, 40)]
Logits = dict[tuple[int, int], torch.Tensor]  # by row and position


@pytest.fixture(scope="module", autouse=True)
def kernel() -> CpuAttention:
    try:
        return CpuAttention("cpp")
    except InputError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return make_checkpoint(folder, hidden_size=160, intermediate_size=352, head_dim=40)


def logits_of(
    folder: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[dict[str, Any]],
    policy: str = "blend",
    **how: Any,
) -> Logits:
    """Every row of logits that a run draws from."""
    seen: Logits = {}
    real = TokenDrawer.draw

    def noted(drawer: TokenDrawer, logits: torch.Tensor, requests: Any, positions: Any) -> Any:
        for row, position, values in zip(
            drawer._requests.row[requests].tolist(), positions.tolist(), logits, strict=True
        ):
            seen[row, position] = values.clone()
        return real(drawer, logits, requests, positions)

    with monkeypatch.context() as patch:
        patch.setattr(TokenDrawer, "draw", noted)
        # greedy rows, too
        patch.setattr(TokenDrawer, "needs_logits", lambda _, requests: np.ones(len(requests), bool))
        plan, _ = plan_job(
            folder, rows, model, policy=policy, max_tokens=5, ignore_eos=True, prior_output_len=2
        )
        execute(plan, folder / "run", **{"deterministic": True, **how})
    return seen


@pytest.fixture(scope="module")
def together(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Logits:
    with pytest.MonkeyPatch.context() as patch:
        return logits_of(tmp_path_factory.mktemp("together"), model, patch, ROWS)


@pytest.mark.parametrize(
    ("policy", "how"),
    [
        ("random", {"chunk_size": 7, "page_size": 3}),
        ("dfs", {"prefix_cache": False, "max_seqs": 2}),
        ("random", {"page_size": 4, "kv_memory": 80 * 4 * 640}),
        ("arrival", {"chunk_size": 1}),
    ],
    ids=["small chunks", "nothing shared", "little memory", "token by token"],
)
def test_logits_do_not_depend_on_policy_and_chunks(
    policy: str,
    how: dict[str, Any],
    model: Path,
    together: Logits,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    other = logits_of(tmp_path, model, monkeypatch, ROWS, policy, **how)
    assert other.keys() == together.keys()
    assert [at for at in other if not torch.equal(other[at], together[at])] == []
    if "kv_memory" in how:
        assert sum(read_steps(tmp_path / "run")["preemptions"].to_pylist()) > 0


@pytest.mark.parametrize("row", [0, 5])
def test_logits_of_a_row_alone_are_those_among_others(
    row: int, model: Path, together: Logits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    alone = logits_of(tmp_path, model, monkeypatch, [ROWS[row]])
    assert len(alone) == ROWS[row]["max_tokens"]
    for (_, position), values in alone.items():
        assert torch.equal(values, together[row, position])


def test_bfloat16_too(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    how = {"dtype": "bfloat16"}
    first = logits_of(tmp_path / "a", model, monkeypatch, ROWS[:4], **how)
    other = logits_of(tmp_path / "b", model, monkeypatch, ROWS[:4], "random", chunk_size=9, **how)
    assert other.keys() == first.keys()
    assert [at for at in other if not torch.equal(other[at], first[at])] == []


def test_the_report_tells_the_padding(model: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, ROWS[:1], model, max_tokens=5)
    execute(plan, tmp_path / "run", deterministic=True)
    steps = read_steps(tmp_path / "run")
    tokens = np.add(steps["prefill_tokens"].to_numpy(), steps["decode_tokens"].to_numpy())
    padded = sum(-(-n // ROW_BLOCK) * ROW_BLOCK for n in tokens.tolist())
    values = make_report(tmp_path / "run").values()
    assert values["padding_rows"] == padded - tokens.sum()
    assert values["padding_frac"] == pytest.approx(1 - tokens.sum() / padded)
    manifest = read_manifest(tmp_path / "run")
    assert manifest is not None
    assert manifest.environment["deterministic"] is True
    assert pq.read_metadata(tmp_path / "run" / "outputs.parquet").num_rows == 1


def test_a_run_stays_what_it_is(model: Path, tmp_path: Path):
    plan, _ = plan_job(tmp_path, ROWS[:1], model, max_tokens=5)
    execute(plan, tmp_path / "run")
    with pytest.raises(PlanError, match="deterministic was False, now True"):
        execute(plan, tmp_path / "run", deterministic=True)


def test_plain_torch_is_refused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(BACKEND_VARIABLE, "torch")
    plan, _ = plan_job(tmp_path, ROWS[:1], model, max_tokens=5)
    with pytest.raises(InputError, match="needs the C\\+\\+ attention kernel"):
        execute(plan, tmp_path / "run", deterministic=True)


def test_products_that_round_by_place_are_found(
    model: Path, kernel: CpuAttention, monkeypatch: pytest.MonkeyPatch
):
    config = DecoderConfig.from_hf(resolve_model(str(model)).config)
    decoder = Decoder(config, load_weights(model, config, torch.float32), ROW_BLOCK)
    check_deterministic(decoder, kernel)

    def uneven(x: torch.Tensor, weight: torch.Tensor, bias: Any, _eps: Any) -> torch.Tensor:
        out = F.linear(x, weight, bias)
        out[5] *= 1 + 2**-20
        return out

    monkeypatch.setattr(decoder_module, "linear", uneven)
    with pytest.raises(BackendError, match="by its place"):
        check_deterministic(decoder, kernel)
