"""Tiny random models through the executor, on every back end: scheduling never shows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from octavo.contracts.sampling_params import SamplingParams
from octavo.executor.uniproc import UniProcExecutor
from octavo.models import registry
from tests.worker.tiny import HYBRID, LLAMA, MISTRAL, tiny_config, tiny_files
from tests.worker.toy import ToyRequest, ToyScheduler

NUM_TOKENS = 10
NUM_BLOCKS = 80

Device = tuple[str, str, dict[str, Any]]
Running = tuple[UniProcExecutor, int]  # and its number of KV groups


def make_requests() -> list[ToyRequest]:
    rng = random.Random(5)
    params = [
        SamplingParams(temperature=0.0, logprobs=3),
        SamplingParams(temperature=1.0, seed=7),
        SamplingParams(temperature=0.8, top_p=0.9, top_k=20, seed=8, logprobs=0),
        SamplingParams(temperature=1.0, min_p=0.05, seed=9, min_tokens=4, max_tokens=20),
    ]
    return [
        ToyRequest(
            request_id=f"r{i}",
            prompt=[rng.randrange(64) for _ in range(length)],
            params=params[i % 4],
            sample_index=i // 4,
            stop_ids=tuple(range(0, 64, 3)),
        )
        for i, length in enumerate((1, 15, 16, 17, 40, 33))
    ]


@pytest.fixture(scope="module", autouse=True)
def hybrid_is_registered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry._MODELS, "HybridForCausalLM", "tests.worker.tiny")
        yield


def serve(requests: list[ToyRequest], running: Running, depth: int, seed: int | None) -> None:
    """All requests to their end. With a seed: random chunks, order, admissions and preemptions."""
    rng = random.Random(seed)
    executor, num_groups = running
    scheduler = ToyScheduler(num_groups, NUM_BLOCKS)
    for request in requests:
        scheduler.add(request)
    while scheduler.waiting or scheduler.running:
        while scheduler.num_in_flight >= depth:
            scheduler.collect()
        for name, request in list(scheduler.running.items()):
            if len(request.output) >= NUM_TOKENS:
                scheduler.finish(name)
        if seed is not None and scheduler.running and rng.random() < 0.1:
            scheduler.preempt(rng.choice(list(scheduler.running)))
        elif (
            scheduler.waiting
            and len(scheduler.running) < 4
            and (seed is None or rng.random() < 0.5)
        ):
            scheduler.admit(rng.choice(list(scheduler.waiting)))
        order = rng.sample(list(scheduler.running), len(scheduler.running))
        chunk = [64 // max(1, len(order))] if seed is None else [1, 3, 7, 16]
        step = scheduler.schedule({name: rng.choice(chunk) for name in order})
        executor.execute_model(step)
        future = executor.sample_tokens(None)
        scheduler.submitted(step, lambda future=future: future.result())
    while scheduler.num_in_flight:
        scheduler.collect()


def answers(requests: list[ToyRequest]) -> list[Any]:
    """Ids and logprobs, to the bit."""
    assert all(r.error is None and len(r.output) >= NUM_TOKENS for r in requests)
    return [
        (
            r.output[:NUM_TOKENS],
            [(p.token_ids.tolist(), p.logprobs.tobytes(), p.ranks.tolist()) for p in r.logprobs][
                :NUM_TOKENS
            ],
        )
        for r in requests
    ]


@pytest.fixture(
    scope="module",
    params=[
        (device, dtype, model)
        for device in ("reference", "cpu")
        for dtype in ("float32", "bfloat16")
        for model in (LLAMA, MISTRAL, HYBRID)
    ],
    ids=lambda p: f"{p[0]}-{p[1]}-{p[2]['architectures'][0]}",
)
def device(request: pytest.FixtureRequest) -> Device:
    return request.param


@contextmanager
def running(device: Device, depth: int = 1) -> Iterator[Running]:
    name, dtype, model = device
    config = tiny_config(
        device=name, dtype=dtype, pipeline_depth=depth, num_gpu_blocks_override=NUM_BLOCKS
    )
    executor = UniProcExecutor(config, tiny_files(model))
    info = executor.start()
    yield executor, len(info.kv_cache_config.groups)
    executor.shutdown()


@pytest.fixture(scope="module")
def alone(device: Device) -> list[Any]:
    """Each request by itself, whole prompts, one step at a time."""
    requests = make_requests()
    with running(device) as engine:
        for request in requests:
            serve([request], engine, depth=1, seed=None)
    return answers(requests)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_scheduling_does_not_show(
    device: Device, alone: list[Any], depth: int, seed: int | None
) -> None:
    requests = make_requests()
    with running(device, depth) as engine:
        serve(requests, engine, depth, seed)
    assert answers(requests) == alone


@pytest.mark.parametrize("model", [LLAMA, MISTRAL, HYBRID])
def test_back_ends_agree(model: dict[str, Any]) -> None:
    """Greedy ids of float32 models are the same; logprobs nearly."""
    found = []
    for name in ("reference", "cpu"):
        requests = [r for r in make_requests() if r.params.is_greedy]
        with running((name, "float32", model)) as engine:
            serve(requests, engine, 1, None)
        found.append(requests)
    for one, other in zip(*found):
        assert one.output[:NUM_TOKENS] == other.output[:NUM_TOKENS]
        for a, b in zip(one.logprobs, other.logprobs):
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_layers_that_differ_get_a_group_each() -> None:
    with running(("reference", "float32", HYBRID)) as (_, num_groups):
        assert num_groups == 3
