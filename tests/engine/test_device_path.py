"""A job through the GPU path, on the stand-in for FlashInfer: the CPU engine's tokens."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from blendrun.engine.sampler import TokenKernels
from flashinfer_stand_in import ContractError
from tiny_devices import OnStandIn, in_plain_torch, in_triton
from tiny_jobs import execute, plan_job
from tiny_launches import counting
from tiny_models import make_checkpoint
from tiny_plants import PLANTS

POLICIES = ("blend", "dfs", "random", "arrival", "blendserve")
PREFIX = "the quick brown fox jumps over the lazy dog and then the dog"
# nested prefixes, equal prompts, draws, chunks that end inside of a page
ROWS: list[dict[str, Any]] = [
    *(
        {"prompt": f"{PREFIX}{' jumps over' * (i % 3)} {i}", "max_tokens": 3 + i % 5}
        for i in range(10)
    ),
    *({"prompt": f"question {i}: 12 + {i} =", "max_tokens": 9} for i in range(4)),
    *({"prompt": word * 6, "max_tokens": 12} for word in (" fox", " dog", " 42", " sum")),
    *({"prompt": f"{PREFIX} {i}", "max_tokens": 8, "temperature": 0.9} for i in range(4)),
    *({"prompt": "what is the sum?", "max_tokens": 7, "n": 2, "temperature": 1.0} for _ in "ab"),
]


@pytest.fixture(scope="module")
def plans(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("plans")
    return {
        policy: plan_job(folder / policy, ROWS, checkpoint, policy=policy, ignore_eos=True)[0]
        for policy in POLICIES
    }


def answers(plan: Path, run_dir: Path, load: Any = None, **settings: Any) -> list[Any]:
    wanted = {"page_size": 4, "chunk_size": 32, **settings}
    result = execute(plan, run_dir, load, **wanted)
    return pq.read_table(result.outputs)["output_token_ids"].to_pylist()


@pytest.fixture(scope="module")
def expected(plans: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return answers(plans["blend"], tmp_path_factory.mktemp("cpu") / "run")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pod", [False, True], ids=["two launches", "pod"])
def test_tokens_are_those_of_the_cpu(
    policy: str, pod: bool, plans: dict[str, Path], expected: list[Any], tmp_path: Path
):
    library, launches = counting()
    chunk_size = 8 if pod else 32  # short ones run beside decodes
    load = OnStandIn(library)
    found = answers(plans[policy], tmp_path / "run", load, pod=pod, chunk_size=chunk_size)
    assert found == expected
    assert launches["cascade"] > 0
    assert (launches["pod"] > 0) == pod


@pytest.mark.parametrize(
    "settings",
    [
        {"shared_prefix_attention": False},
        {"prefix_cache": False},
        {"max_seqs": 3, "kv_memory": 2**16},
        {"chunk_size": 3, "max_seqs": 1},  # steps in which nothing is drawn
    ],
    ids=str,
)
def test_tokens_are_those_of_the_cpu_in_other_settings(
    settings: dict[str, Any], plans: dict[str, Path], expected: list[Any], tmp_path: Path
):
    assert answers(plans["blend"], tmp_path / "run", OnStandIn(), **settings) == expected


def test_plain_torch_gives_the_tokens_of_the_cpu(
    plans: dict[str, Path], expected: list[Any], tmp_path: Path
):
    assert answers(plans["blend"], tmp_path / "run", in_plain_torch) == expected


def test_our_triton_kernels_give_the_tokens_of_the_cpu(checkpoint: Path, tmp_path: Path):
    pytest.importorskip("triton")
    rows = [  # few: the interpreter is slow
        {"prompt": "fox 0", "max_tokens": 2},
        {"prompt": "fox 1", "max_tokens": 2, "temperature": 1.0, "top_k": 50},
    ]
    plan, _ = plan_job(tmp_path, rows, checkpoint, ignore_eos=True)
    expected = answers(plan, tmp_path / "cpu")
    assert answers(plan, tmp_path / "device", in_triton) == expected


def test_our_draws_beside_flashinfer_give_the_tokens_of_the_cpu(checkpoint: Path, tmp_path: Path):
    pytest.importorskip("triton")
    kernels = import_module("blendrun.engine.triton_tokens").TRITON_TOKENS
    drawn = []

    def draw(logits: Any, best: Any, rows: Any, columns: Any) -> Any:
        drawn.extend(rows)
        return kernels.draw(logits, best, rows, columns)

    rows = [
        {"prompt": "what is the sum?", "max_tokens": 3},
        {"prompt": "what is the sum?", "max_tokens": 3, "temperature": 1.0},
        {"prompt": "question 4", "max_tokens": 3, "temperature": 2.0, "top_p": 0.8},
        {"prompt": "question 5", "max_tokens": 3, "temperature": 2.0, "top_k": 9, "min_p": 0.01},
    ]
    plan, _ = plan_job(tmp_path, rows, checkpoint, ignore_eos=True)
    expected = answers(plan, tmp_path / "cpu")
    load = OnStandIn(tokens=TokenKernels(kernels.argmax, draw))
    assert answers(plan, tmp_path / "device", load) == expected
    assert len(drawn) == 6  # not those with top_p


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_other_architectures_give_the_tokens_of_the_cpu(architecture: str, tmp_path: Path):
    checkpoint = make_checkpoint(tmp_path / "model", architecture)
    plan, _ = plan_job(tmp_path, ROWS[:12], checkpoint, ignore_eos=True)
    expected = answers(plan, tmp_path / "cpu")
    assert answers(plan, tmp_path / "device", OnStandIn(), pod=True) == expected


@pytest.mark.parametrize("pod", [False, True], ids=["two launches", "pod"])
@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_planted_error_in_an_index_array_changes_tokens(
    plant: Callable[[pytest.MonkeyPatch], None],
    pod: bool,
    plans: dict[str, Path],
    expected: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    plant(monkeypatch)
    try:
        found = answers(plans["blend"], tmp_path / "run", OnStandIn(), pod=pod, chunk_size=8)
    except ContractError:
        return
    assert found != expected
