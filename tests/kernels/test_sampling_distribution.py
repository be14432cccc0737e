"""What is drawn, against the distribution that is asked for, and one back end against another."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from octavo.contracts.tensor import DType
from octavo.kernels.sampling_ops import SamplingRows
from tests.kernels.backends import make_backend
from tests.kernels.test_cpu_sampling import BACKENDS, TIERS, shapes
from tests.sample.twin import TwinSampling, keep

NUM_DRAWS = 20_000
NUM_TOKENS = 80
SIGNIFICANCE = 0.01  # of all combinations together (Bonferroni)
COMBINATIONS = list(product((0.6, 1.0, 1.8), (0, 1, 7, 40), (1.0, 0.9, 0.35), (0.0, 0.02, 0.3)))


def rows_of(n: int, temperature: float, top_k: int, top_p: float, min_p: float) -> SamplingRows:
    """n draws of one request: its seed, one position after the other."""
    return SamplingRows(
        temperature=np.full(n, temperature, np.float32),
        top_k=np.full(n, top_k, np.int32),
        top_p=np.full(n, top_p, np.float32),
        min_p=np.full(n, min_p, np.float32),
        seed=np.full(n, 2**63 + 5, np.uint64),
        sample_index=np.zeros(n, np.int32),
        position=np.arange(n, dtype=np.int32),
    )


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """The p-value of counts [V]; tokens that are expected less than 5 times are one."""
    expected = probabilities * counts.sum()
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    kept = expected > 0
    assert (observed[~kept] == 0).all()
    if kept.sum() == 1:
        return 1.0
    statistic = ((observed[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    degrees = kept.sum() - 1
    return float(torch.special.gammaincc(torch.tensor(degrees / 2), torch.tensor(statistic / 2)))


LOGITS = np.random.default_rng(7).normal(scale=1.5, size=NUM_TOKENS).astype(np.float32)
LOGITS[[30, 31, 60]] = LOGITS.max() - 0.5  # ties


def draws(temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """How often each token is drawn: [V]."""
    rows = rows_of(NUM_DRAWS, temperature, top_k, top_p, min_p)
    logits = np.tile(LOGITS, (NUM_DRAWS, 1))
    ids = make_backend("cpu", DType.F32, 1).sampling.sample(logits, rows)
    return np.bincount(ids, minlength=NUM_TOKENS)


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), COMBINATIONS)
def test_frequencies_are_the_distribution(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    weights = keep(LOGITS, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    counts = draws(temperature, top_k, top_p, min_p)
    assert (counts[weights == 0] == 0).all()
    assert chi_square(counts, weights / weights.sum()) > SIGNIFICANCE / len(COMBINATIONS)


def test_the_frequencies_of_a_slightly_other_temperature_are_told_apart() -> None:
    weights = keep(LOGITS, temperature=1.1, top_k=0, top_p=1.0, min_p=0.0)
    assert chi_square(draws(1.0, 0, 1.0, 0.0), weights / weights.sum()) < SIGNIFICANCE / 100


def random_rows(n: int, seed: int) -> SamplingRows:
    rng = np.random.default_rng(seed)
    return SamplingRows(
        temperature=rng.choice([0.0, 0.3, 0.8, 1.0, 1.7], n).astype(np.float32),
        top_k=rng.choice([0, 0, 1, 5, 40, 3000], n).astype(np.int32),
        top_p=rng.choice([1.0, 0.95, 0.8, 0.3], n).astype(np.float32),
        min_p=rng.choice([0.0, 0.0, 0.01, 0.2], n).astype(np.float32),
        seed=rng.integers(0, 2**64, n, dtype=np.uint64),
        sample_index=rng.integers(0, 9, n).astype(np.int32),
        position=rng.integers(0, 10**6, n).astype(np.int32),
    )


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_two_thousand_rows_token_by_token(backend: str) -> None:
    """Against weights, cuts and sums in float64, written from the text; half of the rows have
    ties, which go to the lowest id."""
    rng = np.random.default_rng(11)
    logits = rng.normal(scale=3, size=(2000, 200)).astype(np.float32)
    logits[::2] = np.round(logits[::2])
    rows = random_rows(2000, 12)
    made = make_backend(backend, DType.F32, 1)
    on_device = torch.from_numpy(logits) if backend == "reference" else logits
    ids = made.sampling.sample(on_device, rows)
    np.testing.assert_array_equal(ids, TwinSampling().sample(logits, rows))


VARIANTS = {
    "temperature": {"temperature": 0.9},
    "top-p": {"temperature": 0.8, "top_p": 0.9},
    "top-p of little": {"top_p": 0.1},
    "top-p of nearly all": {"top_p": 0.9999},
    "top-k": {"top_k": 50},
    "top-k of many": {"top_k": 5000},
    "min-p": {"min_p": 0.05},
    "min-p of many": {"temperature": 1.9, "min_p": 1e-4},
    "all": {"temperature": 0.7, "top_k": 3000, "top_p": 0.97, "min_p": 1e-3},
}


def hard_logits() -> np.ndarray:
    """Rows where cuts are sought in every way: heads, samples, ties, masks, a misleading order."""
    found = list(shapes(5).values())
    masked = found[0].copy()
    masked[np.random.default_rng(1).random(len(masked)) < 0.9] = -np.inf
    equal = np.zeros_like(masked)
    rising = np.sort(found[1])
    return np.stack([*found, masked, equal, rising, 1e30 * found[0]]).astype(np.float32)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_tier_does_what_the_reference_does_to_the_bit(variant: dict[str, float]) -> None:
    """Nine rows of a real vocabulary's size: tokens, processed logits and, among tiers, log
    probabilities."""
    logits = hard_logits()
    n = len(logits)
    filters = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **variant}
    rows = rows_of(n, *filters.values())  # type: ignore[arg-type]
    numbers = np.arange(n, dtype=np.int32)
    reference = make_backend("reference", DType.F32, 1).sampling
    ids = reference.sample(torch.from_numpy(logits.copy()), rows)
    processed = torch.from_numpy(logits.copy())
    reference.process(processed, numbers, rows)
    logprobs = []
    for backend in BACKENDS:
        np.testing.assert_array_equal(backend.sampling.sample(logits, rows), ids)
        again = logits.copy()
        backend.sampling.process(again, numbers, rows)
        np.testing.assert_array_equal(again, processed.numpy())
        logprobs.append(backend.sampling.logprobs(processed.numpy(), numbers, ids, 1000))
    assert len(logprobs) == len(TIERS)
    for found in logprobs[1:]:
        for a, b in zip(found, logprobs[0]):
            np.testing.assert_array_equal(a, b)
