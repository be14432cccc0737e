"""The sampling ops of every back end, against a twin in plain Python and float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.contracts.tensor import DType
from octavo.errors import KernelError
from octavo.kernels import torch_sampling
from octavo.kernels.ops import Backend, Graph, Ops, StepInputs, StepLimits
from octavo.kernels.rng import uniform
from octavo.kernels.sampling_ops import SamplingRows
from tests.kernels.backends import BACKENDS, make_backend

MAX_ROWS = 40


class Sampling:
    """Sampling ops of a back end, on logits of our choice (as a graph's tap gives them)."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.ops = backend, backend.sampling
        self._graphs: dict[int, Graph] = {}

    def tap(self, logits: np.ndarray) -> Any:
        """`logits` [R, V] float32 as the back end's own array."""
        num_rows, vocab = logits.shape
        if vocab not in self._graphs:
            self._graphs[vocab] = self._capture(vocab)
        step = StepInputs.of_rows(num_rows, {"logits": logits.astype(np.float32)})
        return self._graphs[vocab].replay(step)["logits"]

    def _capture(self, vocab: int) -> Graph:
        def forward(ops: Ops) -> None:
            ops.output("logits", ops.select_rows(ops.input("logits", vocab)))

        limits = StepLimits(
            max_tokens=MAX_ROWS,
            max_requests=1,
            max_logit_rows=MAX_ROWS,
            max_blocks_per_request=1,
            max_position=MAX_ROWS,
        )
        return self.backend.capture(forward, limits)

    def sample(self, logits: np.ndarray, rows: SamplingRows) -> list[int]:
        ids = self.ops.sample(self.tap(logits), rows)
        assert ids.dtype == np.int32
        return [int(i) for i in ids]


@pytest.fixture(params=BACKENDS, scope="module")
def sampling(request: pytest.FixtureRequest) -> Sampling:
    return Sampling(make_backend(request.param, DType.F32, 1))


def make_rows(
    n: int,
    *,
    temperature: Any = 1.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    min_p: Any = 0.0,
    seed: Any = None,
    sample_index: Any = 0,
    position: Any = 5,
) -> SamplingRows:
    def column(value: Any, dtype: type) -> np.ndarray:
        return np.broadcast_to(np.asarray(value, dtype=dtype), (n,)).copy()

    return SamplingRows(
        temperature=column(temperature, np.float32),
        top_k=column(top_k, np.int32),
        top_p=column(top_p, np.float32),
        min_p=column(min_p, np.float32),
        seed=column(np.arange(n) if seed is None else seed, np.uint64),
        sample_index=column(sample_index, np.int32),
        position=column(position, np.int32),
    )


def kept_weights(
    logits: np.ndarray, t: float, top_k: int, top_p: float, min_p: float
) -> list[float]:
    """The twin: weights by token id, 0 for what is cut. `SamplingOps` in plain Python."""
    x = [float(v) for v in logits]
    best = max(x)
    weights = [math.exp((v - best) / t) if v < best else 1.0 for v in x]
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))
    order = [i for i in order if weights[i] >= min_p]
    order = order[:top_k] if top_k else order
    if top_p < 1:
        total, before, nucleus = math.fsum(weights[i] for i in order), 0.0, []
        for i in order:
            if nucleus and before >= top_p * total:
                break
            nucleus.append(i)
            before += weights[i]
        order = nucleus
    kept = set(order)
    return [w if i in kept else 0.0 for i, w in enumerate(weights)]


def twin_sample(logits: np.ndarray, rows: SamplingRows, i: int) -> tuple[int, float]:
    """The token, and how near the draw was to another one, relative to the total."""
    if rows.temperature[i] == 0:
        return int(np.argmax(logits)), 1.0
    u = uniform(rows.seed[i : i + 1], rows.position[i : i + 1], rows.sample_index[i : i + 1])[0]
    weights = kept_weights(
        logits,
        float(rows.temperature[i]),
        int(rows.top_k[i]),
        float(rows.top_p[i]),
        float(rows.min_p[i]),
    )
    total, running, margin, token = math.fsum(weights), 0.0, 1.0, None
    for j, w in enumerate(weights):
        running += w
        margin = min(margin, abs(running / total - u))
        if token is None and running > u * total:
            token = j
    assert token is not None
    return token, margin


def random_logits(n: int, vocab: int, seed: int, scale: float = 3.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal((n, vocab))).astype(np.float32)


# Chosen so that no threshold falls on a rounding error: the twin sums in another order.
FILTERS = {
    "plain": {},
    "hot": {"temperature": 1.7},
    "cold": {"temperature": 0.3},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.07},
    "all": {"temperature": 1.3, "top_k": 20, "top_p": 0.85, "min_p": 0.02},
    "top_k-1": {"top_k": 1},
    "top_k-over": {"top_k": 10**6},
    "top_p-near-1": {"top_p": 0.9999999},
    "top_p-tiny": {"top_p": 1e-9},
    "min_p-1": {"min_p": 1.0},
    "greedy": {"temperature": 0.0, "top_k": 3, "top_p": 0.5},
}


@pytest.mark.parametrize("vocab", [1, 5, 97, 1000])
@pytest.mark.parametrize("name", FILTERS)
def test_equals_the_twin(sampling: Sampling, name: str, vocab: int) -> None:
    logits = random_logits(MAX_ROWS, vocab, seed=vocab)
    rows = make_rows(MAX_ROWS, **FILTERS[name])
    ids = sampling.sample(logits, rows)
    for i, got in enumerate(ids):
        token, margin = twin_sample(logits[i], rows, i)
        assert got == token or margin < 2e-6, (i, got, token)  # weights may be float32


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    temperature=st.floats(0.015625, 4, width=32),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.0625, 1, width=32),
    min_p=st.floats(0, 1, width=32),
)
def test_only_kept_tokens_are_drawn(
    sampling: Sampling, seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = random_logits(1, 32, seed)
    rows = make_rows(1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    (token,) = sampling.sample(logits, rows)
    # A hair wider than asked: sums in another order may disagree on the last token kept.
    weights = kept_weights(
        logits[0], temperature, top_k, min(1.0, top_p + 1e-6), min_p * (1 - 1e-6)
    )
    assert weights[token] > 0


def test_frequencies_follow_the_weights(sampling: Sampling) -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.125, 0.125]], dtype=np.float32))
    draws = []
    for first in range(0, 4000, MAX_ROWS):
        rows = make_rows(MAX_ROWS, seed=np.arange(first, first + MAX_ROWS))
        draws += sampling.sample(np.repeat(logits, MAX_ROWS, axis=0), rows)
    shares = np.bincount(draws, minlength=4) / len(draws)
    assert np.abs(shares - [0.5, 0.25, 0.125, 0.125]).max() < 0.03


def test_ties_go_to_the_lowest_id(sampling: Sampling) -> None:
    logits = np.zeros((MAX_ROWS, 50), dtype=np.float32)
    logits[:, [7, 20, 33]] = 4.0
    assert set(sampling.sample(logits, make_rows(MAX_ROWS, temperature=0.0))) == {7}
    assert set(sampling.sample(logits, make_rows(MAX_ROWS, top_k=1))) == {7}
    assert set(sampling.sample(logits, make_rows(MAX_ROWS, top_k=2))) == {7, 20}
    assert set(sampling.sample(logits, make_rows(MAX_ROWS, top_p=0.01))) == {7}
    _, best, ranks = _logprobs(sampling, logits[:1], [33], 3)
    assert best == [[33, 7, 20, 33]]
    assert ranks == [1]


@pytest.mark.parametrize("temperature", [1e-38, 1e-45, 1e-6])
def test_tiny_temperatures_are_greedy(sampling: Sampling, temperature: float) -> None:
    logits = random_logits(MAX_ROWS, 64, seed=3)
    rows = make_rows(MAX_ROWS, temperature=temperature)
    assert sampling.sample(logits, rows) == logits.argmax(axis=1).tolist()


def test_extremes_of_logits(sampling: Sampling) -> None:
    logits = random_logits(8, 64, seed=4)
    logits[:, 10:] = -np.inf
    logits[2] = -3e38
    logits[3, 1] = 3e38
    ids = sampling.sample(logits, make_rows(8, top_p=0.9, top_k=30))
    assert all(0 <= i < 10 for r, i in enumerate(ids) if r != 2)
    assert ids[3] == 1


@pytest.mark.parametrize("vocab", [97, 1000])
def test_a_row_does_not_depend_on_the_others(sampling: Sampling, vocab: int) -> None:
    logits = random_logits(MAX_ROWS, vocab, seed=5)
    rng = np.random.default_rng(6)
    columns = {
        "temperature": rng.choice([0.0, 0.7, 1.0, 1.9], MAX_ROWS),
        "top_k": rng.choice([0, 1, 5, 50], MAX_ROWS),
        "top_p": rng.choice([1.0, 0.9, 0.3], MAX_ROWS),
        "min_p": rng.choice([0.0, 0.05], MAX_ROWS),
        "seed": rng.integers(0, 2**63, MAX_ROWS),
        "sample_index": rng.integers(0, 4, MAX_ROWS),
        "position": rng.integers(0, 4000, MAX_ROWS),
    }
    together = sampling.sample(logits, make_rows(MAX_ROWS, **columns))
    order = rng.permutation(MAX_ROWS)
    moved = sampling.sample(
        logits[order], make_rows(MAX_ROWS, **{k: v[order] for k, v in columns.items()})
    )
    assert moved == [together[i] for i in order]
    for i in (0, 7, 39):
        row = make_rows(1, **{k: v[i : i + 1] for k, v in columns.items()})
        assert sampling.sample(logits[i : i + 1], row) == [together[i]]


def test_the_draw_is_keyed_by_seed_index_and_position(sampling: Sampling) -> None:
    logits = np.repeat(random_logits(1, 1000, seed=8, scale=0.1), 4, axis=0)
    seed, index, position = [1, 2, 1, 1], [0, 0, 1, 0], [9, 9, 9, 10]
    rows = make_rows(4, seed=seed, sample_index=index, position=position)
    ids = sampling.sample(logits, rows)
    assert len(set(ids)) == 4
    assert sampling.sample(logits, rows) == ids


def test_a_draw_of_zero_takes_no_masked_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_sampling, "uniform", lambda seed, *_: np.zeros(len(seed)))
    logits = np.array([[-np.inf, -np.inf, 0.5, 0.0]], dtype=np.float32)
    reference = Sampling(make_backend("reference", DType.F32, 1))
    assert reference.sample(logits, make_rows(1)) == [2]


def test_mask(sampling: Sampling) -> None:
    logits = random_logits(3, 20, seed=9)
    tap = sampling.tap(logits)
    sampling.ops.mask(tap, np.array([0, 0, 2, 0], np.int32), np.array([3, 19, 0, 3], np.int32))
    expected = logits.copy()
    expected[0, [3, 19]] = -np.inf
    expected[2, 0] = -np.inf
    assert np.array_equal(sampling.backend.to_numpy(tap), expected)
    sampling.ops.mask(tap, np.array([], np.int32), np.array([], np.int32))
    assert np.array_equal(sampling.backend.to_numpy(tap), expected)


def _logprobs(
    sampling: Sampling, logits: np.ndarray, tokens: list[int], k: int
) -> tuple[np.ndarray, list[list[int]], list[int]]:
    n = len(tokens)
    ids, logprobs, ranks = sampling.ops.logprobs(
        sampling.tap(logits), np.arange(n, dtype=np.int32), np.array(tokens, dtype=np.int32), k
    )
    assert (ids.dtype, logprobs.dtype, ranks.dtype) == (np.int32, np.float32, np.int32)
    assert ids.shape == logprobs.shape == (n, 1 + k)
    return logprobs, ids.tolist(), ranks.tolist()


@pytest.mark.parametrize(("vocab", "k"), [(1, 1), (33, 0), (97, 5), (97, 97), (3000, 20)])
def test_logprobs_equal_the_twin(sampling: Sampling, vocab: int, k: int) -> None:
    logits = random_logits(12, vocab, seed=vocab + 1)
    tokens = np.random.default_rng(1).integers(0, vocab, 12).tolist()
    logprobs, ids, ranks = _logprobs(sampling, logits, tokens, k)
    for i, token in enumerate(tokens):
        x = logits[i].astype(np.float64)
        expected = x - x.max() - math.log(math.fsum(np.exp(x - x.max())))
        order = sorted(range(vocab), key=lambda j: (-x[j], j))
        assert ids[i] == [token, *order[:k]]
        assert np.abs(logprobs[i] - expected[ids[i]]).max() < 2e-6
        assert ranks[i] == 1 + int((x > x[token]).sum())


def test_logprobs_of_chosen_rows(sampling: Sampling) -> None:
    logits = random_logits(9, 50, seed=11)
    tap = sampling.tap(logits)
    rows, tokens = np.array([8, 0, 8], np.int32), np.array([1, 2, 3], np.int32)
    ids, logprobs, ranks = sampling.ops.logprobs(tap, rows, tokens, 4)
    for i, (row, token) in enumerate(zip(rows, tokens)):
        alone = sampling.ops.logprobs(
            sampling.tap(logits[row : row + 1]), rows[1:2], tokens[i : i + 1], 4
        )
        assert token == tokens[i]
        assert np.array_equal(ids[i : i + 1], alone[0])
        assert np.array_equal(logprobs[i : i + 1], alone[1])  # bit for bit
        assert np.array_equal(ranks[i : i + 1], alone[2])


def test_logprobs_of_masked_tokens(sampling: Sampling) -> None:
    logits = np.full((1, 6), -np.inf, dtype=np.float32)
    logits[0, 4] = 1.5
    logprobs, ids, ranks = _logprobs(sampling, logits, [2], 2)
    assert ids == [[2, 4, 0]]
    assert logprobs[0].tolist() == [-np.inf, 0.0, -np.inf]
    assert ranks == [2]


@pytest.mark.parametrize("wrong", ["rows", "k"])
def test_misuse_is_refused(sampling: Sampling, wrong: str) -> None:
    tap = sampling.tap(random_logits(4, 10, seed=1))
    calls: dict[str, Callable[[], Any]] = {
        "rows": lambda: sampling.ops.sample(tap, make_rows(3)),
        "k": lambda: _logprobs(sampling, random_logits(4, 10, seed=1), [0], 11),
    }
    with pytest.raises(KernelError):
        calls[wrong]()
