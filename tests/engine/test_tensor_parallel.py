"""Several ranks, as threads with Gloo between them, give what one rank gives."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from blendrun.cost.tensor_shards import Shard
from blendrun.data.manifest import read_manifest
from blendrun.data.model_files import resolve_model
from blendrun.engine.decoder import Decoder
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.step_inputs import StepInputs
from blendrun.engine.torch_backend import TorchBackend
from blendrun.engine.vocab_shards import best_tokens, whole_logits
from blendrun.engine.weight_files import StoredTensor
from blendrun.engine.weights import load_weights
from blendrun.errors import BackendError, InputError, PlanError
from blendrun.kernels.cpu.argmax import best
from engine.test_decoder import MODELS, dense_attend, load_decoder, positions_of, random_sequences
from tiny_groups import load_on_threads, on_ranks
from tiny_jobs import execute, plan_job
from tiny_models import make_checkpoint

HEADS = {"hidden_size": 192, "num_attention_heads": 12, "intermediate_size": 100}
TEXT = "question: what is the sum of 12 and 30? answer: the "
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
ROWS: list[dict[str, Any]] = [
    {"prompt": TEXT + "sum", "max_tokens": 12},
    {"prompt": TEXT + "dog", "max_tokens": 30},
    {"prompt": "the quick brown", "max_tokens": 40},
    {"prompt": TEXT + "fox", "max_tokens": 9, "temperature": 1.0, "seed": 3, "top_p": 0.9},
    {"prompt": TEXT + "sum of it", "max_tokens": 8, "logprobs": 2, "repetition_penalty": 1.3},
    {"prompt": TEXT[:30], "max_tokens": 6, "prompt_logprobs": 1},
    {"prompt": "a: ", "max_tokens": 12, "json_schema": SCHEMA},
]


def answers(run_dir: Path) -> list[dict[str, Any]]:
    return pq.read_table(run_dir / "outputs.parquet").to_pylist()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, Path, list[Any]]]:
    """By number of KV heads: checkpoint, plan, and what one rank answers."""
    made = {}
    for num_kv_heads in (1, 3, 4):
        folder = tmp_path_factory.mktemp(f"kv-{num_kv_heads}")
        checkpoint = make_checkpoint(folder / "model", num_key_value_heads=num_kv_heads, **HEADS)
        plan, _ = plan_job(folder, ROWS, checkpoint)
        execute(plan, folder / "run", page_size=4)
        made[num_kv_heads] = checkpoint, plan, answers(folder / "run")
    return made


def check_equal(made: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for one, other in zip(made, expected, strict=True):
        assert one["status"] == "ok"
        assert one["output_token_ids"] == other["output_token_ids"]
    for name in ("output_logprobs", "prompt_token_logprobs"):
        one, other = (
            [value or 0.0 for answer in rows for value in (answer[name] or ())]
            for rows in (made, expected)
        )
        assert len(one) > 5
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("num_kv_heads", "tp"), [(4, 2), (4, 4), (3, 3), (1, 2), (1, 3), (1, 4)])
def test_answers_are_those_of_one_rank(models, num_kv_heads: int, tp: int, tmp_path: Path):
    _, plan, expected = models[num_kv_heads]
    execute(plan, tmp_path / "run", load_on_threads, tp=tp, page_size=4)
    check_equal(answers(tmp_path / "run"), expected)
    environment = read_manifest(tmp_path / "run").environment
    assert environment["tp"] == tp


def test_ranks_hold_their_heads_of_the_kv_cache_only(models, tmp_path: Path):
    _, plan, _ = models[4]
    for tp in (1, 4):
        load = load_on_threads if tp > 1 else None
        execute(plan, tmp_path / f"run-{tp}", load, tp=tp, kv_memory=120_000)
    pages = [read_manifest(tmp_path / f"run-{tp}").environment["kv_pages"] for tp in (1, 4)]
    assert pages[1] > pages[0]
    check_equal(answers(tmp_path / "run-4"), answers(tmp_path / "run-1"))


@pytest.mark.parametrize(("num_kv_heads", "tp"), [(4, 3), (4, 6), (3, 2), (3, 4), (1, 5), (1, 7)])
def test_other_numbers_of_ranks_are_refused(models, num_kv_heads, tp, tmp_path: Path):
    checkpoint, plan, _ = models[num_kv_heads]
    sizes = {4: "1, 2, 4, 12", 3: "1, 3, 6, 12", 1: "1, 2, 3, 4, 6, 12"}[num_kv_heads]
    for refused in (
        lambda: execute(plan, tmp_path / "run", tp=tp),
        lambda: plan_job(tmp_path, ROWS, checkpoint, tp=tp),
    ):
        with pytest.raises(InputError, match=f"among {tp} ranks") as caught:
            refused()
        assert caught.value.exit_code == 2
        assert caught.value.hint.endswith(f": {sizes}")
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_with_another_number_of_ranks(models, tmp_path: Path, monkeypatch):
    _, plan, expected = models[4]
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        with pytest.raises(RuntimeError, match="enough"):
            execute(plan, tmp_path / "run", load_on_threads, tp=2, page_size=4)
    execute(plan, tmp_path / "run", load_on_threads, tp=4, page_size=4)
    check_equal(answers(tmp_path / "run"), expected)


def stop_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    real, left = TorchBackend.run, iter(range(steps))

    def run(backend, batch):
        if next(left, None) is None:
            raise RuntimeError("enough")
        return real(backend, batch)

    patch.setattr(TorchBackend, "run", run)


def test_deterministic_ranks_round_alike_whatever_else_runs(models, tmp_path: Path):
    checkpoint, plan, _ = models[3]
    settings = {"tp": 3, "deterministic": True}
    execute(plan, tmp_path / "all", load_on_threads, **settings)
    alone, _ = plan_job(tmp_path / "alone", [ROWS[4]], checkpoint)
    execute(alone, tmp_path / "one", load_on_threads, **settings)
    assert (
        answers(tmp_path / "all")[4]["output_logprobs"]
        == (answers(tmp_path / "one")[0]["output_logprobs"])
    )
    with pytest.raises(PlanError, match="tp was 3, now 1"):
        execute(plan, tmp_path / "all", deterministic=True, tp=1)


@pytest.mark.parametrize("name", [*MODELS, "untied"])
def test_logits_of_every_kind_of_decoder_are_those_of_one_rank(name, tmp_path: Path):
    architecture, overrides = MODELS.get(name, ("LlamaForCausalLM", {}))
    folder = make_checkpoint(tmp_path, architecture, **overrides)
    whole = load_decoder(folder)
    lengths = [9, 1, 17]
    token_ids = torch.cat(random_sequences(lengths, whole.config.vocab_size))

    @torch.inference_mode()
    def logits(decoder: Decoder) -> torch.Tensor:
        hidden = decoder.forward(token_ids, positions_of(lengths), dense_attend(lengths))
        return decoder.logits(hidden)

    def on_rank(group: Any) -> tuple[Any, Any]:
        config = DecoderConfig.from_hf(resolve_model(str(folder)).config)
        weights = load_weights(folder, config, torch.float32, shard=group.shard)
        mine = logits(Decoder(config, weights, group=group))
        size = config.vocab_size
        return whole_logits(mine, size, group), best_tokens(best(mine), size, group)

    expected = logits(whole)
    (first, tokens), second = on_ranks(2, on_rank)
    assert second == (None, None)
    scale = float(expected.abs().max())
    torch.testing.assert_close(first, expected, rtol=0, atol=1e-5 * scale)
    assert np.array_equal(tokens.token_ids, first.argmax(dim=1))
    assert not tokens.bad.any()


def test_one_bad_number_on_any_rank_marks_its_row_only():
    def on_rank(group: Any) -> Any:
        logits = torch.zeros(3, 16)
        logits[0, 5 + group.shard.rank] = 2.0
        logits[2, 3] = 1.0 + group.shard.rank
        if group.shard.rank == 1:
            logits[1, 0] = torch.nan
        return best_tokens(best(logits), 32, group)

    tokens, nothing = on_ranks(2, on_rank)
    assert nothing is None
    assert tokens.token_ids.tolist() == [5, 0, 19]
    assert tokens.bad.tolist() == [False, True, False]


def test_no_rank_reads_more_than_its_part_of_any_matrix(models, monkeypatch):
    folder = models[1][0]
    config = DecoderConfig.from_hf(resolve_model(str(folder)).config)
    read: dict[str, int] = {}
    real = StoredTensor.read

    def note(stored: StoredTensor, part: tuple[slice, ...]) -> torch.Tensor:
        tensor = real(stored, part)
        read[stored.name] = read.get(stored.name, 0) + tensor.numel()
        return tensor

    monkeypatch.setattr(StoredTensor, "read", note)
    size = 4
    for rank in range(size):
        before = dict(read)
        load_weights(folder, config, torch.float32, shard=Shard(rank, size))
        for name, total in numbers(folder).items():
            part = (read[name] - before.get(name, 0)) / total
            if "norm" in name or "k_proj" in name or "v_proj" in name:  # one KV head for all
                assert part == 1
            else:
                assert part <= 0.35
    for name, total in numbers(folder).items():
        if "norm" not in name and "k_proj" not in name and "v_proj" not in name:
            assert read[name] == total  # every part on one rank


def numbers(folder: Path) -> dict[str, int]:
    return {k: t.numel() for k, t in load_file(folder / "model.safetensors").items()}


def test_a_step_reads_as_it_was_told():
    def ints(*values: int) -> np.ndarray:
        return np.array(values, np.int32)

    step = StepInputs(
        slot=np.array([2**40, 7], np.int64),
        memory_frac=np.array([0.375]),
        token_idx=ints(0, 1),
        copy_from=ints(3),
        copy_to=ints(4),
        token_ids=ints(5, 6),
        positions=ints(0, 9),
        part_bounds=ints(0, 1, 2),
        num_tokens=ints(1, 1),
        context_len=ints(1, 10),
        page_table=np.arange(6, dtype=np.int32).reshape(2, 3),
        order=ints(1, 0),
        drawn=ints(1),
        whole=ints(),
        scored=ints(0),
    )

    def on_rank(group: Any) -> Any:
        if group.shard.rank == 0:
            group.tell(step.message())
            return step
        return StepInputs.of(group.hear())

    _, heard = on_ranks(2, on_rank)
    for name in StepInputs.__dataclass_fields__:
        assert np.array_equal(getattr(heard, name), getattr(step, name)), name
        assert getattr(heard, name).dtype == getattr(step, name).dtype


def test_a_rank_that_is_gone_is_an_error_and_no_hang():
    def on_rank(group: Any) -> Any:
        if group.shard.rank == 1:
            group.sum(torch.ones(3))  # by then, the other one has joined, too
            del group
            return None
        with pytest.raises(BackendError, match="does not answer"):
            list(map(group.sum, [torch.ones(3)] * 100))
        return None

    on_ranks(2, on_rank)
