"""Native sampling at a real vocabulary's size, against a float64 twin, on every tier."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.contracts.tensor import DType
from octavo.errors import KernelError
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.rng import uniform
from octavo.kernels.sampling_ops import SamplingRows

VOCAB = 49152
TIERS = CpuBackend(DType.F32, 1).isa_tiers
BACKENDS = [CpuBackend(DType.F32, 1 + i % 3, isa=tier) for i, tier in enumerate(TIERS)]

all_backends = pytest.mark.parametrize("backend", BACKENDS, ids=TIERS)


def make_rows(n: int, **columns: object) -> SamplingRows:
    def column(name: str, dtype: type, default: object) -> np.ndarray:
        return np.broadcast_to(columns.get(name, default), n).astype(dtype)

    return SamplingRows(
        temperature=column("temperature", np.float32, 1.0),
        top_k=column("top_k", np.int32, 0),
        top_p=column("top_p", np.float32, 1.0),
        min_p=column("min_p", np.float32, 0.0),
        seed=column("seed", np.uint64, np.arange(n, dtype=np.uint64) * np.uint64(2**61 + 9)),
        sample_index=column("sample_index", np.int32, 0),
        position=column("position", np.int32, np.arange(n) * 5),
    )


def kept_weights(x: np.ndarray, temperature: float, k: int, p: float, min_p: float) -> np.ndarray:
    """Weights in float64, zero where the filters drop a token. By a full sort."""
    weights = np.exp((x.astype(np.float64) - x.max()) / temperature)
    order = np.lexsort((np.arange(len(x)), -x))
    keep = weights[order] >= min_p
    if k > 0:
        keep &= np.cumsum(keep) <= k
    before = np.cumsum(weights[order] * keep) - weights[order] * keep
    keep &= before < p * (weights[order] * keep).sum() if p < 1 else True
    keep[0] = True
    result = np.zeros_like(weights)
    result[order[keep]] = weights[order[keep]]
    return result


def shapes(seed: int) -> dict[str, np.ndarray]:
    """Logits as models give them, flat ones, and ones full of ties."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(VOCAB)
    return {
        "peaked": 3.0 * normal,
        "flat": 0.01 * normal,
        "heavy": rng.standard_t(2, VOCAB),
        "ties": np.round(normal),
    }


FILTERS = {
    "none": (1.0, 0, 1.0, 0.0),
    "hot": (1.7, 0, 1.0, 0.0),
    "top-p": (0.8, 0, 0.9, 0.0),
    "tight-top-p": (1.0, 0, 0.05, 0.0),
    "wide-top-p": (1.0, 0, 0.9999, 0.0),
    "top-k": (1.0, 40, 1.0, 0.0),
    "top-1": (1.0, 1, 1.0, 0.0),
    "min-p": (1.0, 0, 1.0, 0.05),
    "min-p-1": (1.0, 0, 1.0, 1.0),
    "all": (0.7, 500, 0.95, 0.01),
}


@all_backends
@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
def test_draws_are_the_twins(backend: CpuBackend, filters: tuple[float, int, float, float]) -> None:
    temperature, k, p, min_p = filters
    logits = np.stack(list(shapes(1).values())).astype(np.float32)
    rows = make_rows(4, temperature=temperature, top_k=k, top_p=p, min_p=min_p)
    ids = backend.sampling.sample(logits, rows)
    u = uniform(rows.seed, rows.position, rows.sample_index)
    for x, token, draw in zip(logits, ids, u):
        t, top_p, floor = (float(np.float32(v)) for v in (temperature, p, min_p))
        weights = kept_weights(x, t, k, top_p, floor)
        running = np.cumsum(weights)
        assert weights[token] > 0
        # Native weights are float32: right to 1e-6 of themselves.
        low, high = running[token] - weights[token], running[token]
        assert low * (1 - 1e-5) <= draw * running[-1] <= high * (1 + 1e-5)


@all_backends
def test_logprobs_are_the_twins(backend: CpuBackend) -> None:
    logits = np.stack(list(shapes(2).values())).astype(np.float32)
    rows, tokens = np.array([3, 0, 2, 1, 3], np.int32), np.array([5, 77, 49151, 0, 9], np.int32)
    ids, values, ranks = backend.sampling.logprobs(logits, rows, tokens, 20)
    for i, (row, token) in enumerate(zip(rows, tokens)):
        x = logits[row].astype(np.float64)
        expected = x - (x.max() + np.log(np.exp(x - x.max()).sum()))
        order = np.lexsort((np.arange(VOCAB), -x))
        assert ids[i].tolist() == [token, *order[:20]]
        assert np.allclose(values[i], expected[ids[i]], atol=2e-6)
        assert ranks[i] == 1 + (x > x[token]).sum()


@all_backends
def test_logprobs_of_the_whole_vocabulary(backend: CpuBackend) -> None:
    logits = shapes(3)["ties"][None, :301].astype(np.float32)
    zero = np.zeros(1, np.int32)
    ids, values, _ = backend.sampling.logprobs(logits, zero, zero, 301)
    assert sorted(ids[0, 1:]) == list(range(301))
    assert (np.diff(values[0, 1:]) <= 0).all()


@all_backends
@pytest.mark.parametrize("vocab", [31, 1000, VOCAB])
def test_bitmasks(backend: CpuBackend, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = rng.standard_normal((3, vocab)).astype(np.float32)
    words = rng.integers(-(2**31), 2**31, (2, -(-vocab // 32)))
    words[:, ::3], words[:, 1::5] = -1, 0
    bits = words[:, np.arange(vocab) // 32] >> np.arange(vocab) % 32 & 1
    expected = logits.copy()
    expected[[0, 2]] = np.where(bits, logits[[0, 2]], -np.inf)
    backend.sampling.allow(logits, np.array([0, 2], np.int32), words.astype(np.int32))
    np.testing.assert_array_equal(logits, expected)


@all_backends
def test_greedy_takes_the_lowest_id_among_equals(backend: CpuBackend) -> None:
    logits = np.zeros((3, VOCAB), np.float32)
    logits[1, [40000, 1234]] = 2.0
    logits[2] = -np.inf
    logits[2, 17] = -5.0
    assert backend.sampling.sample(logits, make_rows(3, temperature=0.0)).tolist() == [0, 1234, 17]


@all_backends
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_without_a_choice_still_give_an_id(backend: CpuBackend, temperature: float) -> None:
    logits = np.zeros((4, 100), np.float32)
    logits[0] = -np.inf
    logits[1] = np.nan
    logits[2, [7, 9]] = np.inf
    logits[3, ::2] = np.nan
    logits[3, 51] = 40.0
    rows = make_rows(4, temperature=temperature, top_k=5, top_p=0.5, min_p=0.1)
    assert backend.sampling.sample(logits, rows).tolist() == [0, 0, 7, 51]


def test_a_row_draws_alike_in_any_batch_on_any_threads() -> None:
    logits = np.stack([x for s in range(6) for x in shapes(s).values()]).astype(np.float32)
    rows = make_rows(24, top_k=np.arange(24) % 5 * 30, top_p=0.95)
    backends = [CpuBackend(DType.F32, n) for n in (1, 2, 3)]
    results = [b.sampling.sample(logits, rows).tolist() for b in backends]
    assert results[1:] == results[:1] * 2
    for i in range(0, 24, 5):
        one = SamplingRows(**{name: getattr(rows, name)[i : i + 1] for name in rows.__slots__})
        assert backends[1].sampling.sample(logits[i : i + 1], one)[0] == results[0][i]


def test_logits_with_padded_rows_are_read_in_place() -> None:
    padded = np.full((3, 64), 9.0, np.float32)
    logits = padded[:, :50]
    logits[:] = np.random.default_rng(0).standard_normal((3, 50))
    sampling = BACKENDS[0].sampling
    sampling.mask(logits, np.array([1, 1], np.int32), np.array([0, 49], np.int32))
    assert np.isneginf(logits[1, [0, 49]]).all()
    assert (padded[:, 50:] == 9.0).all()
    ids = sampling.sample(logits, make_rows(3, temperature=0.0))
    assert ids.tolist() == logits.argmax(axis=1).tolist()


def test_what_does_not_fit_is_refused() -> None:
    sampling = BACKENDS[0].sampling
    logits, one = np.zeros((2, 10), np.float32), np.zeros(1, np.int32)
    with pytest.raises(KernelError):
        sampling.sample(logits, make_rows(3))
    with pytest.raises(KernelError):
        sampling.sample(logits.astype(np.float64), make_rows(2))
    with pytest.raises(KernelError):
        sampling.sample(logits.T, make_rows(10))
    for row, token in ((2, 0), (-1, 0), (0, 10), (0, -1)):
        with pytest.raises(KernelError):
            sampling.mask(logits, one + row, one + token)
        with pytest.raises(KernelError):
            sampling.logprobs(logits, one + row, one + token, 1)
    with pytest.raises(KernelError):
        sampling.logprobs(logits, one, one, 11)
    with pytest.raises(KernelError):
        sampling.mask(logits, np.zeros(2, np.int32), one)
