"""Decode-only steps as graphs: replayed, they give the tokens of steps that are run."""

from pathlib import Path
from typing import Any

import pytest
import torch

from blendrun.data.manifest import read_manifest
from blendrun.engine.cuda_graphs import CudaGraphMaker
from blendrun.engine.decode_graphs import BUCKETS, DecodeGraphs, scratch_pages
from blendrun.engine.graphs import Capture, choose_graphs
from blendrun.engine.weights import random_weights
from blendrun.errors import InputError
from blendrun.kernels.flashinfer import attention, static_decodes
from blendrun.kernels.flashinfer.writes import FlashInferWrites
from engine.test_device_path import ROWS, answers
from tiny_graphs import CaptureError, RecordingMaker, WithGraphs
from tiny_jobs import plan_job
from tiny_models import make_checkpoint


@pytest.fixture(scope="module")
def job(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A plan, and what the CPU engine answers."""
    folder = tmp_path_factory.mktemp("job")
    plan, _ = plan_job(folder, ROWS, checkpoint, ignore_eos=True)
    return plan, answers(plan, folder / "cpu")


@pytest.mark.parametrize(
    "settings",
    [
        {"shared_prefix_attention": False},
        {"prefix_cache": False, "max_seqs": 5},
        {"shared_prefix_attention": False, "max_seqs": 3, "kv_memory": 2**16},
    ],
    ids=str,
)
def test_tokens_are_those_of_the_cpu(
    settings: dict[str, Any], job: tuple[Path, list[Any]], tmp_path: Path
):
    plan, expected = job
    load = WithGraphs()
    assert answers(plan, tmp_path / "run", load, **settings) == expected
    assert load.num_replays > len(load.maker.graphs) > 0
    environment = read_manifest(tmp_path / "run").environment
    assert environment["graphs"] == "on"
    assert environment["unknown"] == ["attention_s"]


def test_steps_that_share_reads_are_run_as_they_are(job: tuple[Path, list[Any]], tmp_path: Path):
    plan, expected = job
    load = WithGraphs()  # every decode of this job shares
    assert answers(plan, tmp_path / "run", load) == expected
    assert not load.maker.graphs


def test_steps_with_more_pages_than_have_room_are_run_as_they_are(
    job: tuple[Path, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, expected = job
    monkeypatch.setattr(attention, "_INDICES_PER_PAGE", 0)
    load = WithGraphs()
    assert answers(plan, tmp_path / "run", load, shared_prefix_attention=False) == expected
    assert not load.maker.graphs


def test_tokens_over_float8_are_those_of_steps_that_are_run(
    job: tuple[Path, list[Any]], tmp_path: Path
):
    plan, _ = job
    how = {"kv_dtype": "fp8_e4m3", "shared_prefix_attention": False}
    load = WithGraphs()
    expected = answers(plan, tmp_path / "run", load, graphs="off", **how)
    assert not load.maker.graphs
    assert answers(plan, tmp_path / "replayed", load, **how) == expected
    assert load.num_replays > 0


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_other_architectures_give_the_tokens_of_the_cpu(architecture: str, tmp_path: Path):
    checkpoint = make_checkpoint(tmp_path / "model", architecture)
    plan, _ = plan_job(tmp_path, ROWS[:12], checkpoint, ignore_eos=True)
    load = WithGraphs()
    expected = answers(plan, tmp_path / "cpu")
    found = answers(plan, tmp_path / "run", load, shared_prefix_attention=False)
    assert found == expected
    assert load.num_replays > 0


def _stale_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlashInferWrites, "move_to", lambda _self, _slots: None)


def _stale_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    right = static_decodes.FlashInferDecodes.move_to

    def wrong(self: Any, context_len: Any, page_table: Any, slots: Any) -> None:
        if not hasattr(self, "first"):
            self.first = context_len, page_table
        right(self, *self.first, slots)

    monkeypatch.setattr(static_decodes.FlashInferDecodes, "move_to", wrong)


def _stale_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    right = DecodeGraphs._fill

    def wrong(self: Any, bucket: Any, *of_step: Any) -> bool:
        before = bucket.token_ids.clone()
        fits = right(self, bucket, *of_step)
        if bucket.is_warm:
            bucket.token_ids.copy_(before)
        return fits

    monkeypatch.setattr(DecodeGraphs, "_fill", wrong)


def _padding_in_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    right = DecodeGraphs.__init__

    def wrong(self: Any, *args: Any) -> None:
        right(self, *args)
        self._num_pages = 0

    monkeypatch.setattr(DecodeGraphs, "__init__", wrong)


@pytest.mark.parametrize("plant", [_stale_slots, _stale_pages, _stale_tokens, _padding_in_the_pool])
def test_what_is_not_brought_to_its_place_changes_tokens(
    plant: Any, job: tuple[Path, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, expected = job
    plant(monkeypatch)
    try:
        found = answers(plan, tmp_path / "run", WithGraphs(), shared_prefix_attention=False)
    except AssertionError:  # against FlashInfer's contract
        return
    assert found != expected


def test_a_capture_may_not_wait_for_the_device():
    with pytest.raises(CaptureError, match="the host waits"):
        RecordingMaker()(lambda: torch.ones(3) * float(torch.ones(1) + 1))


def test_a_replay_computes_with_what_is_there_then():
    x = torch.zeros(2)
    graph = RecordingMaker()(lambda: (x + 1).view(1, 2).mul_(3))
    x.copy_(torch.tensor([1.0, 2.0]))
    graph.replay()
    assert graph.made.tolist() == [[6.0, 9.0]]


def test_every_number_of_sequences_has_pages_for_its_padding():
    padding = [b - a - 1 for a, b in zip((0, *BUCKETS), BUCKETS, strict=False)]
    assert scratch_pages(16) * 16 >= max(padding) > (scratch_pages(16) - 1) * 16


class _Decoder:
    """As much of a decoder as decides."""

    def __init__(self, size: int = 1, architecture: str = "LlamaForCausalLM", **sizes: Any):
        from types import SimpleNamespace

        from tiny_models import tiny_config

        self.group = SimpleNamespace(shard=SimpleNamespace(size=size))
        self.weights = random_weights(tiny_config(architecture, **sizes), torch.float32)


def test_what_cannot_be_captured_says_so_where_it_is_asked_for():
    capture: Any = Capture(None, RecordingMaker())  # type: ignore[arg-type]
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    one: Any = _Decoder()
    for problem, found in (
        ("tiles", choose_graphs("auto", None, "tiles", one)),
        ("ranks", choose_graphs("auto", capture, "", _Decoder(2))),
        (
            "experts",
            choose_graphs("auto", capture, "", _Decoder(1, "Qwen3MoeForCausalLM", **experts)),
        ),
        ("off", choose_graphs("off", capture, "", one)),
    ):
        assert found[0] is None
        assert problem in found[1]
    assert choose_graphs("on", capture, "", one)[0] is capture
    with pytest.raises(InputError, match="--graphs on: tiles"):
        choose_graphs("on", None, "tiles", one)


def test_the_cpu_engine_captures_nothing(job: tuple[Path, list[Any]], tmp_path: Path):
    with pytest.raises(InputError, match="--graphs on: a CPU starts each operator itself"):
        answers(job[0], tmp_path / "run", device="cpu", graphs="on")


def test_graphs_of_cuda_have_one_pool(monkeypatch: pytest.MonkeyPatch):
    used: list[Any] = []

    class Fake:
        """Both the graph and the capture of it."""

        def __init__(self, graph: Any = None, pool: Any = None) -> None:
            self.is_graph = graph is None
            if not self.is_graph:
                used.append(pool)

        def __enter__(self) -> None:
            used.append("captured")

        def __exit__(self, *_: Any) -> None: ...

        def pool(self) -> str:
            return "a pool"

        def replay(self) -> None:
            used.append("replayed")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Fake)
    monkeypatch.setattr(torch.cuda, "graph", Fake)
    maker, made = CudaGraphMaker(), torch.ones(1)
    for _ in range(2):
        graph = maker(lambda: made)
        graph.replay()
        assert graph.made is made
    assert used == [None, "captured", "replayed", "a pool", "captured", "replayed"]
