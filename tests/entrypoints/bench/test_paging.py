"""The paging benchmark over a fake executor: what it counts is right."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.engine.llm_engine import LLMEngine
from octavo.entrypoints.bench import paging
from octavo.entrypoints.bench.paging import Occupancy, PagingOptions
from octavo.entrypoints.bench.workload import Request, drain, submit
from octavo.errors import ConfigError
from tests.engine.fakes import fake_engine

OPTIONS = PagingOptions()


def engine_with(occupancy: Occupancy, **executor: int) -> LLMEngine:
    sizes = {"num_blocks": 97, "max_model_len": 1536} | executor
    return fake_engine(executor=sizes, hooks=[occupancy])


def test_waste_saturation_and_the_shared_prefix() -> None:
    """What it measures, where time plays no part."""
    occupancy = Occupancy()
    engine = engine_with(occupancy)
    results = paging.run(engine, OPTIONS, occupancy).results
    assert 0 < results["kv_waste_blocks_per_request_mean"] < 1
    assert results["kv_waste_blocks_per_request_max"] <= 1
    assert results["blocks_in_use_when_saturated"] >= 0.95
    assert results["saturated_steps"] > 10
    assert results["prefix_tokens_in_full_blocks"] == 992
    assert results["prefix_tokens_computed"] == 992
    assert results["prefix_tokens_asked_for"] == 8 * 992
    assert engine.stats().num_used_blocks == 0


def test_continuous_batching_computes_in_half_the_steps() -> None:
    """The step counts behind the ratio of times."""
    engine = engine_with(Occupancy())
    rng = np.random.default_rng(0)
    trace = paging._trace(rng, OPTIONS, 259)
    steps = []
    for run in (
        lambda: paging._run_continuous(engine, trace, [0.0] * len(trace), Occupancy()),
        lambda: paging._run_static(engine, trace, early_exit=True),
        lambda: paging._run_static(engine, trace, early_exit=False),
    ):
        before = engine.stats().num_steps
        run()
        steps.append(engine.stats().num_steps - before)
    assert 2 * steps[0] < steps[1] < steps[2]


def test_static_batches_fit_the_pool_and_keep_the_order() -> None:
    engine = engine_with(Occupancy(), num_blocks=17)
    trace = [Request([i] * 16, n) for i, n in enumerate((16, 48, 1, 1, 240, 1))]
    lengths = {
        early_exit: [[r.num_output_tokens for r in b] for b in batches]
        for early_exit in (True, False)
        for batches in [list(paging._batches(engine, trace, early_exit))]
    }
    assert lengths[True] == [[16, 48, 1, 1], [240], [1]]
    assert lengths[False] == [[48, 48, 48, 48], [240], [1]]
    firsts = [r.prompt_token_ids[0] for b in paging._batches(engine, trace, True) for r in b]
    assert firsts == list(range(6))


def test_waste_is_counted_per_request() -> None:
    occupancy = Occupancy()
    engine = engine_with(occupancy)
    submit(engine, "a", Request([1] * 17, 2), temperature=0.0)
    drain(engine)
    assert occupancy.wastes == [15 / 16, 14 / 16]
    occupancy.forget()
    assert occupancy.wastes == []


def test_a_workload_that_does_not_fit() -> None:
    occupancy = Occupancy()
    with pytest.raises(ConfigError, match="1020 tokens"):
        paging.run(engine_with(occupancy, max_model_len=1000), OPTIONS, occupancy)
