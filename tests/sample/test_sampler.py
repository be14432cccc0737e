"""The sampler over a real back end's ops, against a float64 twin of the whole of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.config.sections import LogprobsMode
from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.step import NewRequestData
from octavo.kernels.ops import Backend
from octavo.kernels.rng import uniform
from octavo.kernels.sampling_ops import SAMPLING_OPS
from octavo.sample.sampler import SampledRows
from tests.sample.lab import (
    NUM_ROWS,
    VOCAB,
    NumpyBackend,
    batch_of,
    make_sampler,
    new,
    random_logits,
    run,
)
from tests.sample.twin import TwinSampling, keep

MODES: tuple[LogprobsMode, ...] = LogprobsMode.__args__  # type: ignore[attr-defined]


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
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.5, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, -0.5, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -2.0, 0.25]),
    logit_bias=st.sampled_from([None, None, {5: 4.0, 9: -100.0}, {47: 1.5}]),
    allowed_token_ids=st.sampled_from([None, None, None, [3], [0, 5, 9, 31, 32, 47]]),
)
requests = st.builds(
    new,
    params,
    output=st.lists(st.integers(0, VOCAB - 1), max_size=7),
    stop_ids=st.lists(st.sampled_from([0, 5, 9, 47, 48, -1, 10**6]), max_size=4, unique=True),
    sample_index=st.integers(0, 4),
    bad_words_token_ids=st.sampled_from([[], [], [[9], [7, 8]], [[5, 5, 6], [31]]]),
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


@settings(max_examples=80, deadline=None)
@given(
    batch=st.lists(requests, min_size=1, max_size=NUM_ROWS),
    seed=st.integers(0, 2**32 - 1),
    mode=st.sampled_from(MODES),
)
def test_equals_the_float64_twin(backend: Backend, batch, seed: int, mode: LogprobsMode) -> None:
    logits = random_logits(seed, len(batch))
    by_row = dict(reversed(list(enumerate(batch))))
    got = run(backend, by_row, logits, logprobs_mode=mode)
    want = run(NumpyBackend(), by_row, logits, logprobs_mode=mode)
    for i, (token_id, wanted) in enumerate(zip(got.token_ids, want.token_ids)):
        assert token_id == wanted or _is_near_an_edge(list(by_row.values())[i], logits[i])
    if got.token_ids == want.token_ids:
        assert_same(got, want, exact=False)


def _is_near_an_edge(request: NewRequestData, logits: np.ndarray) -> bool:
    """Of the draw, or of a filter, on the edited logits."""
    sampler = make_sampler(NumpyBackend(), {0: request})
    edited = logits[None].copy()
    batch = batch_of({0: request})
    for stage in sampler._edits:
        if (rows := stage.rows_to_edit(batch)) is not None:
            stage.apply(NumpyBackend.sampling, edited, batch, rows)
    return is_on_an_edge(request, edited[0], len(request.token_ids))


@settings(max_examples=40, deadline=None)
@given(
    batch=st.lists(requests, min_size=2, max_size=NUM_ROWS),
    seed=st.integers(0, 2**32 - 1),
    mode=st.sampled_from(MODES),
)
def test_a_row_is_the_same_alone_and_in_any_batch(
    backend: Backend, batch, seed: int, mode: LogprobsMode
) -> None:
    logits = random_logits(seed, len(batch))
    by_row = dict(enumerate(batch))
    together = run(backend, by_row, logits, logprobs_mode=mode)
    for row, request in by_row.items():
        one = run(backend, {5: request}, logits[row : row + 1], logprobs_mode=mode)
        assert one.failed.get(0) == together.failed.get(row)
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


def test_the_order_of_the_edits(backend: Backend) -> None:
    """Allowed ids, bad words and stop ids, then biases, then penalties, as vLLM has it: a penalty
    sees the biased logit."""
    logits = np.full((1, VOCAB), -9.0, dtype=np.float32)
    logits[0, [3, 4, 5, 6]] = [8.0, 5.0, 1.0, 0.5]
    params = SamplingParams(
        temperature=0.0,
        min_tokens=9,
        allowed_token_ids=[4, 5, 6],  # not 3
        logit_bias={3: 100.0, 5: 2.0, 6: 1.0},
        repetition_penalty=2.0,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        logprobs=2,
    )
    request = new(
        params, prompt=[5], output=[6, 6], stop_ids=[3], bad_words_token_ids=[[9, 9], [4]]
    )
    sampled = run(backend, {0: request}, logits, logprobs_mode="processed_logits")
    rows = sampled.logprobs[0]
    # 5 is in the prompt: (1 + 2) / 2; 6 twice in the output: (0.5 + 1) / 2 - 2 * 0.5 - 0.25.
    assert rows.token_ids.tolist() == [[5, 5, 6]]
    assert rows.logprobs.tolist() == [[1.5, 1.5, -0.5]]
    raw = run(backend, {0: request}, logits, logprobs_mode="raw_logits").logprobs[0]
    assert raw.token_ids.tolist() == [[5, 3, 4]]
    assert raw.logprobs.tolist() == [[1.0, 8.0, 5.0]]
    assert raw.ranks.tolist() == [3]


def test_stop_ids_are_masked_until_min_tokens_are_out(backend: Backend) -> None:
    logits = np.zeros((1, VOCAB), dtype=np.float32)
    logits[0, 7], logits[0, 8], logits[0, 9] = 5, 4, 3
    params = SamplingParams(temperature=0.0, min_tokens=2, max_tokens=9)
    for num_out, want in ((0, 9), (1, 9), (2, 7), (3, 7)):
        request = new(params, output=[1] * num_out, stop_ids=[7, 8])
        assert run(backend, {0: request}, logits).token_ids == [want], num_out


def test_logprobs_are_of_the_raw_distribution(backend: Backend) -> None:
    """Neither edits nor filters show in them."""
    logits = random_logits(3, 1)
    best = int(logits[0].argmax())
    shaped = SamplingParams(
        temperature=2.0,
        top_k=2,
        top_p=0.5,
        seed=1,
        min_tokens=5,
        max_tokens=9,
        logprobs=-1,
        repetition_penalty=1.5,
        allowed_token_ids=list(range(40)),
        logit_bias={4: 3.0},
    )
    sampled = run(backend, {0: new(shaped, stop_ids=[best])}, logits)
    token = sampled.token_ids[0]
    assert token != best
    rows = sampled.logprobs[0]
    x = logits[0].astype(np.float64)
    raw = x - np.log(np.exp(x).sum())
    assert rows.token_ids.shape == rows.logprobs.shape == (1, 1 + VOCAB)
    assert rows.token_ids[0, :2].tolist() == [token, best]
    np.testing.assert_allclose(rows.logprobs[0], raw[rows.token_ids[0]], rtol=1e-5)
    assert rows.ranks.tolist() == [1 + int((x > x[token]).sum())]
    assert np.isclose(np.exp(rows.logprobs[0, 1:].astype(np.float64)).sum(), 1, atol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_processed_logprobs_are_what_the_token_was_drawn_from(
    backend: Backend, temperature: float
) -> None:
    logits = random_logits(4, 1)
    params = SamplingParams(
        temperature=temperature, top_k=3, seed=1, logprobs=5, logit_bias={7: 9.0}
    )
    sampled = run(backend, {0: new(params)}, logits, logprobs_mode="processed_logprobs")
    x = logits[0].astype(np.float64)
    x[7] += 9
    best = np.argsort(-x, kind="stable")
    if temperature:  # a greedy row has neither temperature nor filters
        x /= temperature
        x[best[3:]] = -np.inf
    expected = x - np.log(np.exp(x).sum())
    rows = sampled.logprobs[0]
    assert rows.token_ids[0, 1:4].tolist() == best[:3].tolist()
    np.testing.assert_allclose(rows.logprobs[0], expected[rows.token_ids[0]], rtol=1e-5)


def test_each_row_gets_as_many_logprobs_as_it_asked_for(backend: Backend) -> None:
    ks = [None, 0, 3, -1, 3]
    by_row = {row: new(SamplingParams(temperature=0.0, logprobs=k)) for row, k in enumerate(ks)}
    sampled = run(backend, by_row, random_logits(1, 5))
    widths = {row: rows.logprobs.shape for row, rows in sampled.logprobs.items()}
    assert widths == {1: (1, 1), 2: (1, 4), 3: (1, 1 + VOCAB), 4: (1, 4)}
    assert all(rows.token_ids[0, 0] == sampled.token_ids[r] for r, rows in sampled.logprobs.items())
    assert all(rows.ranks.tolist() == [1] for rows in sampled.logprobs.values())


def test_extremes(backend: Backend) -> None:
    """Filters that filter nothing change nothing; tiny temperatures and min_p 1 are greedy."""
    logits = random_logits(11, 1)

    def draw(length: int, **options: Any) -> int:
        params = SamplingParams(**{"temperature": 1.0, "seed": 5, **options})
        request = new(params, output=[0] * length)
        return int(run(backend, {0: request}, logits).token_ids[0])

    best = int(logits[0].argmax())
    for length in range(20):
        plain = draw(length)
        assert all(draw(length, top_k=k) == plain for k in (9999999, -1, VOCAB))
        assert draw(length, top_p=0.9999999) == plain
        assert draw(length, min_p=1.0) == best
        assert draw(length, temperature=1e-38) == best
        assert draw(length, temperature=1e-6) == best
    assert len({draw(length) for length in range(20)}) > 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("temperature", [1e-38, 1e-6, 2.0])
def test_extremes_of_penalties_and_temperatures(
    backend: Backend, mode: LogprobsMode, temperature: float
) -> None:
    """Values stay finite where a token can be drawn."""
    for penalty in (1e-38, 1.0, 3.4e38):
        params = SamplingParams(
            temperature=temperature, repetition_penalty=penalty, seed=3, logprobs=0
        )
        request = new(params, prompt=[5, 9, 1])
        sampled = run(backend, {0: request}, random_logits(5, 1), logprobs_mode=mode)
        assert not sampled.failed
        if penalty == 1.0 or mode.startswith("raw"):
            assert np.isfinite(sampled.logprobs[0].logprobs).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_fails_alone(
    backend: Backend, temperature: float, value: float
) -> None:
    logits = random_logits(2, 3)
    logits[1] = value
    params = SamplingParams(temperature=temperature, seed=1, logprobs=2, allowed_token_ids=[1, 5])
    by_row = {row: new(params) for row in range(3)}
    sampled = run(backend, by_row, logits)
    assert list(sampled.failed) == [1]
    assert "not finite" in sampled.failed[1]
    assert sorted(sampled.logprobs) == [0, 2]
    clean = run(backend, by_row, random_logits(2, 3))
    assert sampled.token_ids[::2] == clean.token_ids[::2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_every_token_masked_fails(backend: Backend, temperature: float) -> None:
    params = SamplingParams(
        temperature=temperature, seed=1, min_tokens=1, allowed_token_ids=[3, 4, 40], logprobs=1
    )
    request = new(params, stop_ids=[3], bad_words_token_ids=[[4], [40]])
    by_row = {0: request, 1: new(SamplingParams(temperature=0.0))}
    sampled = run(backend, by_row, random_logits(1, 2))
    assert list(sampled.failed) == [0]
    assert "exclude all" in sampled.failed[0]


def test_drafts_are_part_of_what_came_before(backend: Backend) -> None:
    """Each logits row gives what it would give if the drafts before it had been sampled."""
    params = SamplingParams(
        temperature=0.0, repetition_penalty=1.4, frequency_penalty=0.7, logprobs=2
    )
    words = [[4, 6], [6, 4, 9]]
    drafts = [4, 6, 4, 30]
    logits = random_logits(6, 1 + len(drafts))
    request = new(params, output=[8, 4], bad_words_token_ids=words)
    sampler = make_sampler(backend, {2: request}, logprobs_mode="processed_logprobs")
    copies = [logits.copy() if backend.name == "cpu" else _tensor(logits) for _ in range(2)]
    batch = batch_of({2: request}, {2: drafts})
    first, second = (sampler.sample(copy, batch) for copy in copies)
    assert_same(second, first, exact=True)  # nothing was remembered of the drafts
    for i in range(1 + len(drafts)):
        plain = new(params, output=[8, 4, *drafts[:i]], bad_words_token_ids=words)
        one = run(backend, {0: plain}, logits[i : i + 1], logprobs_mode="processed_logprobs")
        assert one.token_ids[0] == first.token_ids[i]
        np.testing.assert_array_equal(one.logprobs[0].logprobs, first.logprobs[i].logprobs)


def _tensor(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array.copy())


class CountingOps(TwinSampling):
    """Remembers which ops were called, for how many rows."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in SAMPLING_OPS:
            self.calls.append(name)
        return super().__getattribute__(name)


def test_absent_stages_cost_nothing_and_leave_with_their_request() -> None:
    backend = NumpyBackend()
    backend.sampling = ops = CountingOps()
    rich = new(
        SamplingParams(
            temperature=0.0,
            min_tokens=4,
            logprobs=1,
            logit_bias={3: 1.0},
            presence_penalty=0.5,
            allowed_token_ids=[1, 2, 3],
        ),
        stop_ids=[3],
        bad_words_token_ids=[[2]],
    )
    plain = new(SamplingParams(temperature=0.0), stop_ids=[3])
    sampler = make_sampler(backend, {0: plain, 1: rich})

    def calls(row: int, request: NewRequestData) -> list[str]:
        ops.calls.clear()
        sampler.sample(random_logits(4, 1), batch_of({row: request}))
        return list(ops.calls)

    edits = ["allow", "mask", "mask", "add_bias", "penalize"]
    assert calls(0, plain) == ["sample"]
    assert calls(1, rich) == [*edits, "sample", "logprobs"]
    sampler.remove_request(1)
    sampler.add_request(1, plain)
    sampler.apply_staged_writes()
    assert calls(1, plain) == ["sample"]


def test_an_edit_touches_no_other_row(backend: Backend) -> None:
    """Rows of plain requests in a batch with every stage get the very draws they get alone."""
    rich = SamplingParams(
        temperature=1.0,
        seed=1,
        logit_bias={3: 1.0},
        repetition_penalty=2.0,
        allowed_token_ids=[1, 2, 3],
        logprobs=2,
    )
    plain = SamplingParams(temperature=1.0, seed=9, logprobs=2)
    by_row = {0: new(plain), 1: new(rich, bad_words_token_ids=[[2]]), 2: new(plain), 3: new(rich)}
    logits = random_logits(8, 4)
    sampled = run(backend, by_row, logits)
    for row in (0, 2):
        alone = run(backend, {7: by_row[row]}, logits[row : row + 1])
        assert alone.token_ids[0] == sampled.token_ids[row]
        np.testing.assert_array_equal(alone.logprobs[0].logprobs, sampled.logprobs[row].logprobs)
