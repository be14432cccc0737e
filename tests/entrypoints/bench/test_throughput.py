"""The throughput benchmark over a fake executor."""

from __future__ import annotations

import pytest

from octavo.entrypoints.bench.throughput import ThroughputOptions, run
from octavo.errors import ConfigError
from tests.engine.fakes import fake_engine

OPTIONS = ThroughputOptions(num_prompts=9, input_len=20, output_len=6, seed=3)


def test_counts() -> None:
    engine = fake_engine()
    report = run(engine, OPTIONS)
    results = report.results
    assert 9 * 10 <= results["input_tokens"] <= 9 * 30
    assert 9 * 3 <= results["output_tokens"] <= 9 * 9
    assert results["output_tokens_per_second"] * results["seconds"] == pytest.approx(
        results["output_tokens"]
    )
    assert 0 < results["peak_kv_cache_usage"] < 1
    assert 3 <= results["steps"] <= 20
    assert results["preemptions"] == 0
    assert report.config == {
        "model": "smollm2-135m",
        "num_prompts": 9,
        "input_len": 20,
        "output_len": 6,
        "seed": 3,
    }
    assert engine.stats().num_used_blocks == 0


def test_the_workload_repeats() -> None:
    keys = ("input_tokens", "output_tokens", "steps", "peak_kv_cache_usage")
    first, again = ([run(fake_engine(), OPTIONS).results[k] for k in keys] for _ in range(2))
    assert first == again


def test_too_long() -> None:
    options = ThroughputOptions(num_prompts=4, input_len=1000)
    with pytest.raises(ConfigError, match="max_model_len=256"):
        run(fake_engine(), options)
