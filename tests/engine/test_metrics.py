from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from octavo.contracts.messages import (
    BlockTimes,
    EngineOutput,
    EngineOutputs,
    EngineRequest,
    FinishReason,
    SchedulerStats,
)
from octavo.contracts.sampling_params import SamplingParams
from octavo.engine.metrics import (
    CacheInfo,
    EngineMetrics,
    FinishedSequence,
    Histogram,
    buckets_1_2_5,
)
from octavo.engine.metrics_exposition import collect

NONE = {str(reason): 0 for reason in FinishReason}


def requests_of(name: str, n: int = 1, **params: Any) -> list[EngineRequest]:
    return [
        EngineRequest(
            request_id=f"{i}_{name}" if n > 1 else name,
            prompt_token_ids=[1] * 5,
            sampling_params=SamplingParams(n=n, **params),
            arrival_time=100.0,
            sample_index=i,
        )
        for i in range(n)
    ]


def outputs_of(*ids: str, **fields: Any) -> EngineOutputs:
    return EngineOutputs(
        outputs=[EngineOutput(request_id=i, new_token_ids=[7], **fields) for i in ids]
    )


def samples_of(**engines: EngineMetrics) -> dict[tuple[str, ...], float]:
    """What Prometheus reads: (name, label values…) → value."""

    class Both(Collector):
        def collect(self) -> Any:
            return collect(engines)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Both())
    return {
        (s.name.removeprefix("octavo:"), *s.labels.values()): s.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for s in family.samples
    }


def test_times_of_a_request() -> None:
    metrics = EngineMetrics(max_model_len=1000)
    metrics.add_requests(requests_of("a", max_tokens=20))
    metrics.record_outputs(outputs_of("a", queue_time=0.25), 101.0)
    metrics.record_outputs(outputs_of("a"), 101.5)
    metrics.record_outputs(outputs_of("a", finish_reason=FinishReason.STOP), 103.0)
    metrics.record_outputs(outputs_of("a"), 104.0)  # late, of an ended request
    sums = {name: h.total for name, h in metrics.histograms.items()}
    assert sums == pytest.approx(
        {
            "time_to_first_token_seconds": 1.0,
            "inter_token_latency_seconds": 2.0,
            "request_time_per_output_token_seconds": 1.0,
            "e2e_request_latency_seconds": 3.0,
            "request_queue_time_seconds": 0.25,
            "request_inference_time_seconds": 2.75,
            "request_prefill_time_seconds": 0.75,
            "request_decode_time_seconds": 2.0,
            "request_prompt_tokens": 5,
            "request_generation_tokens": 3,
            "request_max_num_generation_tokens": 3,
            "request_params_n": 1,
            "request_params_max_tokens": 20,
            "request_prefill_kv_computed_tokens": 5,
            "request_num_preemptions": 0,
            "iteration_tokens_total": 0,
            "kv_block_lifetime_seconds": 0,
            "kv_block_idle_before_evict_seconds": 0,
            "kv_block_reuse_gap_seconds": 0,
        }
    )
    assert metrics.finished == {**NONE, "stop": 1}
    assert metrics.num_tracked == 0


def test_n_sequences_are_one_request() -> None:
    metrics = EngineMetrics(max_model_len=1000)
    metrics.add_requests(requests_of("a", n=3, max_tokens=9))
    metrics.record_outputs(outputs_of("0_a", "1_a", "2_a"), 101.0)
    metrics.record_outputs(outputs_of("1_a", finish_reason=FinishReason.LENGTH), 102.0)
    assert sum(metrics.histograms["request_params_n"].counts) == 0
    metrics.finish_request("0_a", FinishReason.STOP, now=103.0)
    metrics.finish_request("2_a", FinishReason.ABORT, abort_reason="disconnect", now=103.0)
    assert metrics.histograms["request_params_n"].total == 3
    assert metrics.histograms["request_max_num_generation_tokens"].total == 2
    assert sum(metrics.histograms["e2e_request_latency_seconds"].counts) == 3
    assert metrics.finished == {**NONE, "stop": 1, "length": 1, "abort": 1}
    assert metrics.aborted["disconnect"] == 1


def test_a_request_that_never_started() -> None:
    started: list[str] = []
    metrics = EngineMetrics(max_model_len=1000)
    metrics.on_started = started.append
    metrics.add_requests(requests_of("a"))
    metrics.add_requests(requests_of("b"))
    metrics.record_outputs(outputs_of("b"), 101.0)
    metrics.record_outputs(outputs_of("b"), 102.0)
    for name in ("a", "b", "a", "unknown"):
        metrics.finish_request(name, FinishReason.ABORT)
    assert started == ["b", "a"]
    assert metrics.finished["abort"] == 2
    assert metrics.aborted["api"] == 2
    assert sum(metrics.histograms["request_decode_time_seconds"].counts) == 1
    assert sum(metrics.histograms["request_queue_time_seconds"].counts) == 0


def test_log_probabilities_of_the_prompt_are_no_first_token() -> None:
    metrics = EngineMetrics(max_model_len=1000)
    metrics.add_requests(requests_of("a"))
    metrics.add_requests(requests_of("b"))
    for name in "ab":
        output = EngineOutput(request_id=name, queue_time=0.25)
        metrics.record_outputs(EngineOutputs(outputs=[output]), 100.5)
    metrics.record_outputs(outputs_of("a", finish_reason=FinishReason.STOP), 102.0)
    metrics.finish_request("b", FinishReason.ABORT)
    sums = {name: h.total for name, h in metrics.histograms.items()}
    assert sums["time_to_first_token_seconds"] == pytest.approx(2.0)
    assert sums["request_queue_time_seconds"] == pytest.approx(0.25)
    assert sums["request_prefill_time_seconds"] == pytest.approx(1.75)


def test_where_prompt_tokens_come_from() -> None:
    """Each prompt once, however many completions share it."""
    metrics = EngineMetrics(max_model_len=1000)
    requests = requests_of("a", n=2)
    requests[1].fork_of = "0_a"
    metrics.add_requests(requests)
    told: list[FinishedSequence] = []
    metrics.on_finished = told.append
    first = {"queue_time": 0.1, "num_cached_tokens": 2}
    metrics.record_outputs(outputs_of("0_a", "1_a", **first), 101.0)
    end = {"finish_reason": FinishReason.STOP, "num_preemptions": 3}
    metrics.record_outputs(outputs_of("0_a", "1_a", **end), 102.0)
    assert metrics.prompt_tokens_by_source == {"local_compute": 3, "local_cache_hit": 2}
    samples = samples_of(a=metrics)
    assert samples["prompt_tokens_by_source_total", "a", "local_compute"] == 3
    assert samples["prompt_tokens_cached_total", "a"] == 2
    assert samples["request_num_preemptions_sum", "a"] == 6
    assert samples["request_prefill_kv_computed_tokens_sum", "a"] == 6
    assert [sequence.num_cached_tokens for sequence in told] == [2, 0]


def test_why_sequences_wait() -> None:
    metrics = EngineMetrics(max_model_len=1000)
    for waiting, deferred, expected in ((5, 2, (3, 2)), (1, 2, (0, 1)), (0, 0, (0, 0))):
        stats = SchedulerStats(num_waiting=waiting, num_deferred=deferred)
        metrics.record_outputs(EngineOutputs(stats=stats))
        samples = samples_of(a=metrics)
        name = "num_requests_waiting_by_reason"
        assert (samples[name, "a", "capacity"], samples[name, "a", "deferred"]) == expected


def test_what_is_told_of_a_sequence_at_its_end() -> None:
    metrics = EngineMetrics(max_model_len=1000)
    told: list[FinishedSequence] = []
    metrics.on_finished = told.append
    metrics.add_requests(requests_of("a"))
    metrics.add_requests(requests_of("b"))
    metrics.record_outputs(outputs_of("a", queue_time=0.25, num_cached_tokens=4), 101.0)
    metrics.record_outputs(outputs_of("a", finish_reason=FinishReason.STOP), 103.0)
    metrics.finish_request("b", FinishReason.ABORT)
    metrics.finish_request("b", FinishReason.ABORT)
    a, b = told
    assert a == FinishedSequence(
        request_id="a",
        reason=FinishReason.STOP,
        num_prompt_tokens=5,
        num_generated_tokens=2,
        num_cached_tokens=4,
        arrival=100.0,
        scheduled=100.25,
        first_token=101.0,
        last_token=103.0,
    )
    assert (b.reason, b.num_generated_tokens) == (FinishReason.ABORT, 0)
    assert (b.scheduled, b.first_token, b.last_token) == (None, None, None)


def test_exposition() -> None:
    one, two = EngineMetrics(max_model_len=10), EngineMetrics(max_model_len=10)
    one.cache = CacheInfo(block_size=16, num_blocks=9, dtype="bfloat16", enable_prefix_caching=True)
    stats = SchedulerStats(
        num_running=3,
        num_waiting=2,
        num_blocks=10,
        num_used_blocks=5,
        prefix_queries=8,
        prefix_hits=4,
        num_preemptions=1,
        prompt_tokens=50,
        generation_tokens=60,
        num_steps=1,
        step_tokens=12,
    )
    one.record_outputs(EngineOutputs(stats=stats))
    times = BlockTimes(lifetimes=[3.0], idle=[2.0], reuse_gaps=[0.5, 0.25])
    one.record_outputs(EngineOutputs(block_times=times))
    one.record_outputs(EngineOutputs(stats=stats))  # a heartbeat: no new step
    samples = samples_of(a=one, b=two)
    assert samples["num_requests_running", "a"] == 3
    assert samples["num_requests_running", "b"] == 0
    assert samples["num_requests_waiting", "a"] == 2
    assert samples["kv_cache_usage_perc", "a"] == 0.5
    assert samples["prefix_cache_queries_total", "a"] == 8
    assert samples["prefix_cache_hits_total", "a"] == 4
    assert samples["num_preemptions_total", "a"] == 1
    assert samples["prompt_tokens_total", "a"] == 50
    assert samples["generation_tokens_total", "a"] == 60
    assert samples["kv_block_lifetime_seconds_sum", "a"] == 3
    assert samples["kv_block_idle_before_evict_seconds_sum", "a"] == 2
    assert samples["kv_block_reuse_gap_seconds_bucket", "0.2", "a"] == 0
    assert samples["kv_block_reuse_gap_seconds_count", "a"] == 2
    assert samples["iteration_tokens_total_count", "a"] == 1
    assert samples["iteration_tokens_total_sum", "a"] == 12
    assert samples["iteration_tokens_total_bucket", "8.0", "a"] == 0
    assert samples["iteration_tokens_total_bucket", "16.0", "a"] == 1
    infos = [key for key in samples if key[0] == "cache_config_info"]
    assert infos == [("cache_config_info", "16", "bfloat16", "True", "a", "9")]


@given(st.lists(st.floats(0, 100)), st.lists(st.floats(0, 100), max_size=6, unique=True))
def test_histograms(values: list[float], bounds: list[float]) -> None:
    histogram = Histogram(sorted(bounds))
    for value in values:
        histogram.observe(value)
    for bound, count in histogram.cumulative():
        assert count == sum(v <= float(bound) for v in values)
    assert histogram.cumulative()[-1][0] == "+Inf"
    assert histogram.total == pytest.approx(math.fsum(values))


def test_buckets() -> None:
    assert buckets_1_2_5(1) == (1.0,)
    assert buckets_1_2_5(100) == (1, 2, 5, 10, 20, 50, 100)
    assert buckets_1_2_5(99) == (1, 2, 5, 10, 20, 50)
