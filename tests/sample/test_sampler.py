"""The sampler over a real back end's ops, against a float64 twin of the whole of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.step import NewRequestData
from octavo.contracts.tensor import DType
from octavo.kernels.ops import Backend, SamplingRows
from octavo.kernels.registry import create_backend
from octavo.kernels.rng import uniform
from octavo.sample.sampler import SampledRows, Sampler
from tests.sample.twin import TwinSampling, keep

VOCAB = 48
NUM_ROWS = 8
PROMPT = 3


class NumpyBackend:
    """The twin as a back end: logits are numpy arrays."""

    sampling = TwinSampling()

    @staticmethod
    def to_numpy(array: np.ndarray) -> np.ndarray:
        return array


def device_logits(backend: Backend, logits: np.ndarray) -> Any:
    """Logits as the back end's `Graph.replay` returns them."""
    if backend.name == "reference":
        import torch

        return torch.from_numpy(logits.copy())
    return logits.copy()


@pytest.fixture(scope="module", params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made = create_backend(request.param, DType.F32, num_threads=1)
    yield made
    made.close()


def new(params: SamplingParams, stop_ids: list[int], sample_index: int = 0, output: int = 0):
    return NewRequestData(
        request_id="r",
        token_ids=[1] * (PROMPT + output),
        num_prompt_tokens=PROMPT,
        block_ids=([1],),
        num_computed_tokens=0,
        sampling_params=params,
        sample_index=sample_index,
        stop_ids=stop_ids,
    )


def make_sampler(backend: Any, requests: dict[int, NewRequestData]) -> Sampler:
    sampler = Sampler(backend, num_rows=NUM_ROWS, vocab_size=VOCAB)
    for row, request in requests.items():
        for stage in sampler.stages:
            stage.add_request(row, request)
    for stage in sampler.stages:
        stage.apply_staged_writes()
    return sampler


def random_logits(seed: int, num_rows: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=3, size=(num_rows, VOCAB)).astype(np.float32)
    logits[:, 5] = logits[:, 9]  # a tie
    return logits


def run(backend: Any, requests: dict[int, NewRequestData], logits: np.ndarray, rows, positions):
    sampler = make_sampler(backend, requests)
    on_device = device_logits(backend, logits) if hasattr(backend, "name") else logits.copy()
    return sampler.sample(on_device, np.array(rows), np.array(positions))


def is_on_an_edge(request: NewRequestData, logits: np.ndarray, position: int) -> bool:
    """A filter cuts, or the draw falls, so near to a boundary that rounding may decide."""
    params = request.sampling_params
    assert params is not None
    temperature, top_p, min_p = (
        float(np.float32(x)) for x in (params.temperature, params.top_p, params.min_p)
    )
    weights = keep(logits, temperature=temperature, top_k=params.top_k, top_p=1.0, min_p=0.0)
    if min_p > 0 and np.abs(weights / min_p - 1).min() < 1e-5:
        return True
    weights[weights < min_p] = 0
    if top_p < 1:
        from_best = np.sort(weights)[::-1].cumsum() / weights.sum()
        if np.abs(from_best - top_p).min() < 1e-5:
            return True
    kept = keep(logits, temperature=temperature, top_k=params.top_k, top_p=top_p, min_p=min_p)
    draw = uniform(
        np.array([(params.seed or 0) % 2**64], dtype=np.uint64),
        np.array([position]),
        np.array([request.sample_index]),
    )[0]
    return bool(np.abs(kept.cumsum() / kept.sum() - draw).min() < 1e-5)


params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-6, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, VOCAB, 10**9]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(-(2**63), 2**64 - 1).filter(lambda s: s != -1),
    min_tokens=st.sampled_from([0, 2, 6]),
    logprobs=st.sampled_from([None, 0, 3, -1]),
)
requests = st.builds(
    new,
    params,
    st.lists(st.sampled_from([0, 5, 9, 47, 48, -1, 10**6]), max_size=4, unique=True),
    st.integers(0, 4),
    st.integers(0, 7),
)


def assert_same(got: SampledRows, want: SampledRows, *, exact: bool) -> None:
    np.testing.assert_array_equal(got.token_ids, want.token_ids)
    assert got.failed == want.failed
    assert got.logprobs.keys() == want.logprobs.keys()
    compare = np.testing.assert_array_equal if exact else np.testing.assert_allclose
    for row, rows in want.logprobs.items():
        np.testing.assert_array_equal(got.logprobs[row].token_ids, rows.token_ids)
        np.testing.assert_array_equal(got.logprobs[row].ranks, rows.ranks)
        compare(got.logprobs[row].logprobs, rows.logprobs, **({} if exact else {"rtol": 1e-5}))


@settings(max_examples=60, deadline=None)
@given(batch=st.lists(requests, min_size=1, max_size=NUM_ROWS), seed=st.integers(0, 2**32 - 1))
def test_equals_the_float64_twin(backend: Any, batch, seed: int) -> None:
    logits = random_logits(seed, len(batch))
    by_row = dict(enumerate(batch))
    rows = list(by_row)[::-1]
    positions = [len(by_row[row].token_ids) for row in rows]
    got = run(backend, by_row, logits, rows, positions)
    want = run(NumpyBackend(), by_row, logits, rows, positions)
    same = got.token_ids == want.token_ids
    for i in np.flatnonzero(~same):
        assert is_on_an_edge(by_row[rows[i]], logits[i], positions[i])
    if same.all():
        assert_same(got, want, exact=False)


@settings(max_examples=30, deadline=None)
@given(batch=st.lists(requests, min_size=2, max_size=NUM_ROWS), seed=st.integers(0, 2**32 - 1))
def test_a_row_is_the_same_alone_and_in_any_batch(backend: Any, batch, seed: int) -> None:
    logits = random_logits(seed, len(batch))
    by_row = dict(enumerate(batch))
    positions = [len(r.token_ids) for r in batch]
    together = run(backend, by_row, logits, list(by_row), positions)
    for row, request in by_row.items():
        one = run(backend, {5: request}, logits[row : row + 1], [5], positions[row : row + 1])
        assert one.token_ids[0] == together.token_ids[row]
        assert_same(
            SampledRows(
                token_ids=one.token_ids,
                logprobs={row: one.logprobs[0]} if one.logprobs else {},
            ),
            SampledRows(
                token_ids=together.token_ids[row : row + 1],
                logprobs={row: together.logprobs[row]} if row in together.logprobs else {},
            ),
            exact=True,
        )


def test_stop_ids_are_masked_until_min_tokens_are_out(backend: Any) -> None:
    logits = np.zeros((1, VOCAB), dtype=np.float32)
    logits[0, 7], logits[0, 8], logits[0, 9] = 5, 4, 3
    request = new(SamplingParams(temperature=0.0, min_tokens=2, max_tokens=9), [7, 8])
    for num_out, want in ((0, 9), (1, 9), (2, 7), (3, 7)):
        sampled = run(backend, {0: request}, logits, [0], [PROMPT + num_out])
        assert sampled.token_ids.tolist() == [want], num_out


def test_logprobs_are_of_the_raw_distribution(backend: Any) -> None:
    """Neither the mask nor the filters show in them."""
    logits = random_logits(3, 1)
    best = int(logits[0].argmax())
    shaped = SamplingParams(
        temperature=2.0, top_k=2, top_p=0.5, seed=1, min_tokens=5, max_tokens=9, logprobs=-1
    )
    sampled = run(backend, {0: new(shaped, [best])}, logits, [0], [PROMPT])
    token = int(sampled.token_ids[0])
    assert token != best
    rows = sampled.logprobs[0]
    x = logits[0].astype(np.float64)
    raw = x - np.log(np.exp(x).sum())
    assert rows.token_ids.shape == rows.logprobs.shape == (1, 1 + VOCAB)
    assert rows.token_ids[0, :2].tolist() == [token, best]
    np.testing.assert_allclose(rows.logprobs[0], raw[rows.token_ids[0]], rtol=1e-5)
    assert rows.ranks.tolist() == [1 + int((x > x[token]).sum())]
    assert np.isclose(np.exp(rows.logprobs[0, 1:].astype(np.float64)).sum(), 1, atol=1e-5)


def test_each_row_gets_as_many_logprobs_as_it_asked_for(backend: Any) -> None:
    ks = [None, 0, 3, -1, 3]
    by_row = {row: new(SamplingParams(temperature=0.0, logprobs=k), []) for row, k in enumerate(ks)}
    sampled = run(backend, by_row, random_logits(1, 5), list(by_row), [PROMPT] * 5)
    widths = {row: rows.logprobs.shape for row, rows in sampled.logprobs.items()}
    assert widths == {1: (1, 1), 2: (1, 4), 3: (1, 1 + VOCAB), 4: (1, 4)}
    assert all(rows.token_ids[0, 0] == sampled.token_ids[r] for r, rows in sampled.logprobs.items())
    assert all(rows.ranks.tolist() == [1] for rows in sampled.logprobs.values())


def test_extremes(backend: Any) -> None:
    """Filters that filter nothing change nothing; tiny temperatures and min_p 1 are greedy."""
    logits = random_logits(11, 1)

    def draw(position: int, **options: Any) -> int:
        request = new(SamplingParams(**{"temperature": 1.0, "seed": 5, **options}), [])
        return int(run(backend, {0: request}, logits, [0], [position]).token_ids[0])

    best = int(logits[0].argmax())
    for position in range(20):
        plain = draw(position)
        assert all(draw(position, top_k=k) == plain for k in (9999999, -1, VOCAB))
        assert draw(position, top_p=0.9999999) == plain
        assert draw(position, min_p=1.0) == best
        assert draw(position, temperature=1e-38) == best
        assert draw(position, temperature=1e-6) == best
    assert len({draw(position) for position in range(20)}) > 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_fails_alone(backend: Any, temperature: float, value) -> None:
    logits = random_logits(2, 3)
    logits[1] = value
    params = SamplingParams(temperature=temperature, seed=1, logprobs=2)
    by_row = {row: new(params, []) for row in range(3)}
    sampled = run(backend, by_row, logits, [0, 1, 2], [PROMPT] * 3)
    assert sampled.failed == {1}
    assert sorted(sampled.logprobs) == [0, 2]
    clean = run(backend, by_row, random_logits(2, 3), [0, 1, 2], [PROMPT] * 3)
    assert sampled.token_ids[[0, 2]].tolist() == clean.token_ids[[0, 2]].tolist()


def test_a_row_with_every_token_masked_fails(backend: Any) -> None:
    request = new(SamplingParams(temperature=0.0, min_tokens=1), list(range(VOCAB)))
    sampled = run(backend, {0: request}, random_logits(1, 1), [0], [PROMPT])
    assert sampled.failed == {0}


class CountingOps(TwinSampling):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def mask(self, *args: Any) -> None:
        self.calls.append("mask")
        super().mask(*args)

    def sample(self, logits: Any, rows: SamplingRows) -> np.ndarray:
        self.calls.append("sample")
        return super().sample(logits, rows)

    def logprobs(self, *args: Any) -> Any:
        self.calls.append("logprobs")
        return super().logprobs(*args)


def test_absent_stages_cost_nothing_and_leave_with_their_request() -> None:
    backend = NumpyBackend()
    backend.sampling = CountingOps()
    rich = new(SamplingParams(temperature=0.0, min_tokens=4, logprobs=1), [3])
    plain = new(SamplingParams(temperature=0.0), [3])
    sampler = make_sampler(backend, {0: plain, 1: rich})
    logits = random_logits(4, 1)

    def calls(row: int) -> list[str]:
        backend.sampling.calls.clear()
        sampler.sample(logits.copy(), np.array([row]), np.array([PROMPT]))
        return backend.sampling.calls

    assert calls(0) == ["sample"]
    assert calls(1) == ["mask", "sample", "logprobs"]
    for stage in sampler.stages:
        stage.remove_request(1)
        stage.add_request(1, plain)
        stage.apply_staged_writes()
    assert calls(1) == ["sample"]
