"""Pooling over a toy head, against the definition of each pooling type."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.contracts.pooling_params import PoolingParams, PoolingType
from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.step import CachedRequestData, NewRequestData, SchedulerOutput
from octavo.kernels.ops import Graph, StepInputs
from octavo.kernels.sync import ThreadCounters
from octavo.sample.logprobs import HEAD_LIMITS
from octavo.worker.pooler import Pooler
from octavo.worker.step_batch import StepBatch
from tests.worker.toy import POISON, generate_alone, make_toy

WIDTH = 5


class Backend:
    @staticmethod
    def to_numpy(array: np.ndarray) -> np.ndarray:
        return array


class Head(Graph):
    """A "norm" that gives x + 1."""

    nbytes = 0
    counters = ThreadCounters()

    def __init__(self) -> None:
        self.num_rows = 0

    def replay(self, step: StepInputs) -> Mapping[str, np.ndarray]:
        x = step.extra["hidden_states"]
        assert step.outputs == ["last_hidden_state"]
        assert len(x) <= HEAD_LIMITS.max_tokens
        self.num_rows += len(x)
        return {"last_hidden_state": x + np.float32(1)}


def states(request: int, length: int) -> np.ndarray:
    return np.random.default_rng(request).normal(size=(length, WIDTH)).astype(np.float32)


def new(name: str, length: int, params: PoolingParams | None) -> NewRequestData:
    return NewRequestData(
        request_id=name,
        token_ids=[1] * length,
        num_prompt_tokens=length,
        block_ids=([1],),
        num_computed_tokens=0,
        sampling_params=SamplingParams() if params is None else None,
        pooling_params=params,
    )


def batch_of(parts: list[tuple[int, int, int]]) -> tuple[np.ndarray, StepBatch]:
    """A step of (request, first position, tokens): hidden states and batch; row = request."""
    counts = [count for _, _, count in parts]
    inputs = StepInputs.of_rows(sum(counts), {})
    inputs.query_start = np.cumsum([0, *counts]).astype(np.int32)
    inputs.positions = np.concatenate(
        [np.arange(first, first + count) for _, first, count in parts]
    ).astype(np.int32)
    hidden = np.concatenate(
        [states(request, first + count)[first:] for request, first, count in parts]
    )
    nothing = np.zeros(0, dtype=np.int64)
    batch = StepBatch(
        request_ids=[str(request) for request, _, _ in parts],
        rows=np.array([request for request, _, _ in parts]),
        inputs=inputs,
        num_logits=[],
        logit_rows_of_state=nothing,
        logit_offsets=nothing,
        logit_positions=nothing,
    )
    return hidden, batch


def expected(request: int, length: int, params: PoolingParams) -> np.ndarray:
    rows = states(request, length) + np.float32(1)
    if params.pooling_type == "MEAN":
        vector = np.zeros(WIDTH, dtype=np.float32)
        for row in rows:
            vector = vector + row
        vector = vector / np.float32(length)
    else:
        vector = rows[-1 if params.pooling_type == "LAST" else 0]
    return vector[: params.dimensions]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_chunks_in_any_batch(seed: int) -> None:
    rng = random.Random(seed)
    kinds: list[PoolingType] = ["LAST", "MEAN", "CLS"]
    wishes = {
        i: (
            rng.randint(1, 150),
            PoolingParams(
                pooling_type=rng.choice(kinds),
                dimensions=rng.choice([None, 1, WIDTH]),
                normalize=False,
            ),
        )
        for i in range(rng.randint(1, 4))
    }
    pooler = Pooler(Backend(), Head(), num_rows=8)  # type: ignore[arg-type]
    pooler.add_request(7, new("7", 3, None))
    for i, (length, params) in wishes.items():
        pooler.add_request(i, new(str(i), length, params))
    done = dict.fromkeys(wishes, 0)
    found: dict[str, np.ndarray] = {}
    while left := [i for i in wishes if done[i] < wishes[i][0]]:
        parts = [(7, 0, 1)]
        for i in rng.sample(left, rng.randint(1, len(left))):
            count = min(rng.randint(1, 90), wishes[i][0] - done[i])
            parts.append((i, done[i], count))
            done[i] += count
        hidden, batch = batch_of(rng.sample(parts, len(parts)))
        found |= pooler.pool(hidden, batch)
    assert set(found) == set(map(str, wishes))
    for i, (length, params) in wishes.items():
        np.testing.assert_array_equal(found[str(i)], expected(i, length, params))


def test_length_one() -> None:
    pooler = Pooler(Backend(), Head(), num_rows=1)  # type: ignore[arg-type]
    params = PoolingParams(pooling_type="MEAN", dimensions=3)
    pooler.add_request(0, new("0", 70, params))
    vector = pooler.pool(*batch_of([(0, 0, 70)]))["0"]
    assert vector.dtype == np.float32
    want = expected(0, 70, params)
    np.testing.assert_allclose(vector, want / np.linalg.norm(want), rtol=1e-6)


def test_rows_that_do_not_count_cost_nothing() -> None:
    for kind, count in (("LAST", 1), ("CLS", 1), ("MEAN", 100)):
        head = Head()
        pooler = Pooler(Backend(), head, num_rows=1)  # type: ignore[arg-type]
        pooler.add_request(0, new("0", 100, PoolingParams(pooling_type=kind)))  # type: ignore[arg-type]
        pooler.pool(*batch_of([(0, 0, 60)]))
        pooler.pool(*batch_of([(0, 60, 40)]))
        assert head.num_rows == count


@pytest.mark.parametrize("kind", ["LAST", "MEAN", "CLS"])
def test_a_removed_request_leaves_nothing(kind: PoolingType) -> None:
    """vllm#57927: parts from before a preemption must not count."""
    pooler = Pooler(Backend(), Head(), num_rows=1)  # type: ignore[arg-type]
    params = PoolingParams(pooling_type=kind, normalize=False)
    pooler.add_request(0, new("0", 20, params))
    assert pooler.pool(*batch_of([(0, 0, 19)])) == {}
    pooler.remove_request(0)
    assert pooler.find(np.array([0])) is None
    pooler.add_request(0, new("0", 20, params))
    np.testing.assert_array_equal(
        pooler.pool(*batch_of([(0, 0, 20)]))["0"], expected(0, 20, params)
    )


def test_a_zero_vector_stays_one() -> None:
    pooler = Pooler(Backend(), Head(), num_rows=1)  # type: ignore[arg-type]
    pooler.add_request(0, new("0", 1, PoolingParams(pooling_type="LAST")))
    _, batch = batch_of([(0, 0, 1)])
    zeros = np.full((1, WIDTH), -1, dtype=np.float32)
    np.testing.assert_array_equal(pooler.pool(zeros, batch)["0"], np.zeros(WIDTH, np.float32))


def test_pooling_beside_sampling() -> None:
    """A prompt's vector comes with its last chunk; one that is not finite fails its request only,
    and nobody else's hidden states are asked for."""
    toy = make_toy()
    params = PoolingParams(pooling_type="LAST", normalize=False)
    prompts = {"good": [5, 6, 7, 8], "bad": [5, POISON]}
    new = [
        NewRequestData(
            request_id=name,
            token_ids=prompt,
            num_prompt_tokens=len(prompt),
            block_ids=([i + 1],),
            num_computed_tokens=0,
            pooling_params=params,
        )
        for i, (name, prompt) in enumerate(prompts.items())
    ]
    sampling = NewRequestData(
        request_id="sampling",
        token_ids=[3, 4],
        num_prompt_tokens=2,
        block_ids=([3],),
        num_computed_tokens=0,
        sampling_params=SamplingParams(temperature=0.0),
    )
    step = SchedulerOutput(
        step_id=0,
        new_requests=[*new, sampling],
        num_scheduled_tokens={"good": 3, "sampling": 2, "bad": 2},
        samples=["sampling"],
    )
    toy.runner.execute_model(step)
    output = toy.runner.sample_tokens(None)
    assert output.errors == {"bad": "the model's hidden states are not finite (NaN or infinity)"}
    assert output.pooler_outputs == {}
    assert (
        output.sampled_token_ids[1] == generate_alone([3, 4], SamplingParams(temperature=0.0), 1)[0]
    )
    step = SchedulerOutput(
        step_id=1,
        cached_requests=CachedRequestData(request_ids=["good"], num_computed_tokens=[3]),
        num_scheduled_tokens={"good": 1},
        finished_request_ids=["bad", "sampling"],
    )
    toy.runner.execute_model(step)
    output = toy.runner.sample_tokens(None)
    np.testing.assert_array_equal(output.pooler_outputs["good"], prompts["good"])
    assert output.sampled_token_ids == [[]]
    assert not output.errors
