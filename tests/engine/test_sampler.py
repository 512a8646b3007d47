import numpy as np
import pytest
import torch

from blendrun.engine.logprobs import drawn_logprobs
from blendrun.engine.noise import uniforms
from blendrun.engine.sampler import SamplingColumns, filtered_probabilities, sample
from blendrun.kernels.cpu import argmax_reference
from tiny_graphs import CaptureError, refusing_waits

VOCAB = 50


def columns(num_rows, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, key=None):
    def full(value, dtype):
        return np.broadcast_to(np.asarray(value, dtype=dtype), (num_rows,)).copy()

    return SamplingColumns(
        temperature=full(temperature, np.float32),
        top_p=full(top_p, np.float32),
        top_k=full(top_k, np.int32),
        min_p=full(min_p, np.float32),
        seed=full(seed, np.int64),
        key=np.arange(num_rows, dtype=np.int64) if key is None else full(key, np.int64),
        sample=np.zeros(num_rows, dtype=np.int32),
        position=full(5, np.int64),
    )


def random_logits(num_rows, vocab=VOCAB, seed=0):
    return 2 * torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed))


def reference_probabilities(logits, temperature, top_k, top_p, min_p):
    from transformers import generation

    processors = [generation.TemperatureLogitsWarper(temperature)]
    processors += [generation.TopKLogitsWarper(top_k)] if top_k else []
    processors += [generation.TopPLogitsWarper(top_p)] if top_p < 1 else []
    processors += [generation.MinPLogitsWarper(min_p)] if min_p else []
    scores = logits.double()
    for processor in processors:
        scores = processor(None, scores)
    return scores.softmax(dim=-1)


@pytest.mark.parametrize("min_p", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 0.0])
@pytest.mark.parametrize("top_k", [0, 1, 7, VOCAB, 1000])
def test_filters_equal_those_of_transformers(top_k, top_p, min_p):
    logits = random_logits(20)
    ours = filtered_probabilities(
        logits, columns(20, temperature=0.7, top_k=top_k, top_p=top_p, min_p=min_p)
    )
    ours = ours / ours.sum(dim=-1, keepdim=True)
    expected = reference_probabilities(logits, 0.7, top_k, top_p, min_p)
    assert torch.equal(ours > 0, expected > 0)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-9)


def test_each_row_has_its_own_filters():
    logits = random_logits(4)
    mixed = columns(4, top_k=[0, 3, 0, 1000], top_p=[1.0, 1.0, 0.5, 1.0], min_p=[0, 0, 0, 0.2])
    together = filtered_probabilities(logits, mixed)
    for index in range(4):
        row = np.array([index])
        alone = filtered_probabilities(logits[index : index + 1], mixed.take(row))
        torch.testing.assert_close(together[index : index + 1], alone)
    assert (together > 0).sum(dim=-1)[:2].tolist() == [VOCAB, 3]


def test_greedy_takes_the_best_token_and_the_first_of_equal_ones():
    logits = torch.zeros(2, VOCAB)
    logits[0, [31, 12]] = 4.0
    logits[1, 49] = 1.0
    assert sample(logits, columns(2, temperature=0.0)).token_ids.tolist() == [12, 49]


def test_tokens_equal_to_the_kth_best_all_stay():
    logits = torch.zeros(1, VOCAB)
    logits[0, 10] = 3.0
    logits[0, [20, 21, 22]] = 1.0
    kept = filtered_probabilities(logits, columns(1, top_k=2))[0].nonzero()[:, 0]
    assert kept.tolist() == [10, 20, 21, 22]


def test_of_equal_tokens_at_the_border_of_top_p_the_lower_ids_stay():
    kept = filtered_probabilities(torch.zeros(1, 8), columns(1, top_p=0.5))[0].nonzero()[:, 0]
    assert kept.tolist() == [0, 1, 2, 3]


def test_draws_follow_the_probabilities():
    num_draws = 40_000
    logits = random_logits(1, vocab=12)
    settings = columns(num_draws, temperature=1.5, seed=7)
    drawn = sample(logits.expand(num_draws, -1), settings).token_ids
    expected = num_draws * (logits.double() / 1.5).softmax(dim=-1)[0].numpy()
    counts = np.bincount(drawn, minlength=12)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 31.3  # the 99.9 % quantile for 11 degrees of freedom


def test_draws_respect_filters():
    logits = random_logits(1)
    best = set(logits[0].topk(4).indices.tolist())
    drawn = sample(logits.expand(500, -1), columns(500, top_k=4, temperature=5.0)).token_ids
    assert set(drawn.tolist()) == best


def test_a_draw_does_not_depend_on_the_batch_around_it():
    logits = random_logits(70)
    settings = columns(70, temperature=[0.0, 1.0] * 35, top_p=0.95, seed=3)
    together = sample(logits, settings).token_ids
    order = np.random.default_rng(0).permutation(70)
    shuffled = sample(logits[torch.from_numpy(order)], settings.take(order)).token_ids
    alone = [
        sample(logits[i : i + 1], settings.take(np.array([i]))).token_ids[0] for i in range(70)
    ]
    assert together.dtype == torch.int64
    assert shuffled.tolist() == together[order].tolist()
    assert torch.stack(alone).tolist() == together.tolist()


def test_another_seed_key_sample_or_position_draws_anew():
    logits = torch.zeros(200, 1000)
    settings = columns(200, seed=1)
    base = sample(logits, settings).token_ids
    for name in ("seed", "key", "sample", "position"):
        values = {n: getattr(settings, n) for n in SamplingColumns.__dataclass_fields__}
        values[name] = values[name] + 1
        other = sample(logits, SamplingColumns(**values)).token_ids
        assert (other == base).float().mean() < 0.1, name


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_rows_with_non_finite_logits_are_reported(value, temperature):
    logits = random_logits(3)
    logits[1, 4] = value
    result = sample(logits, columns(3, temperature=temperature))
    assert result.bad.tolist() == [False, True, False]
    clean = sample(logits[[0, 2]], columns(3, temperature=temperature).take(np.array([0, 2])))
    assert result.token_ids[[0, 2]].tolist() == clean.token_ids.tolist()


def test_huge_finite_logits_are_not_bad():
    logits = torch.full((1, VOCAB), 3e38)
    assert not sample(logits, columns(1, temperature=0.0)).bad.any()


def test_no_rows_give_no_tokens():
    result = sample(torch.empty(0, VOCAB), columns(0))
    assert result.token_ids.shape == (0,)


def test_uniforms_are_even_and_take_negative_seeds():
    rows = np.arange(100_000, dtype=np.int64)
    zeros = np.zeros_like(rows)
    u = uniforms(zeros - 12345, rows, zeros, zeros)
    assert u.dtype == np.float64
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.histogram(u, bins=100, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 149  # 99.9 % quantile, 99 degrees of freedom
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.02


def test_uniforms_never_change():
    # Runs that were stopped continue with the same draws: these numbers are part of the format.
    one = np.array([1], dtype=np.int64)
    u = uniforms(one * 42, one * 3, one.astype(np.int32), one * 100)
    assert u.tolist() == [0.8959031776526949]


def test_nobody_waits_for_a_number_of_the_device():
    logits = random_logits(8)
    logits[5, 3] = torch.nan
    mixed = columns(
        8,
        temperature=[0, 1, 1, 0.5, 2, 1, 1, 1],
        top_k=[0, 3, 0, 7, 0, 2, 0, 0],
        top_p=[1, 1, 0.5, 0.9, 1, 0.5, 1, 1],
        min_p=[0, 0, 0, 0, 0.3, 0.1, 0, 0],
    )
    with refusing_waits():
        drawn = sample(logits, mixed).token_ids
        drawn_logprobs(logits, np.array([1, 4]), drawn, 2)
        argmax_reference.argmax(logits)
        with pytest.raises(CaptureError):
            int(drawn[0])
