from __future__ import annotations

import asyncio

from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import eventually, serving

CORE_SET = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "request_aborts_total",
    "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_bucket",
    "request_time_per_output_token_seconds_bucket",
    "e2e_request_latency_seconds_bucket",
    "request_queue_time_seconds_bucket",
    "request_inference_time_seconds_bucket",
    "request_prefill_time_seconds_bucket",
    "request_decode_time_seconds_bucket",
    "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket",
    "request_max_num_generation_tokens_bucket",
    "request_params_n_bucket",
    "request_params_max_tokens_bucket",
    "iteration_tokens_total_bucket",
    "cache_config_info",
    "admission_rejections_total",
]


async def test_exposition() -> None:
    async with serving() as s:
        await s.completion("SAY:abc")
        await s.chat("count", max_tokens=5, stream=True)
        await s.get("/nope")
        metrics = await s.metrics()
        names = {name.partition("{")[0] for name in metrics}
        assert not set(CORE_SET) - names
        assert metrics['request_success_total{finished_reason="stop"}'] == 1
        assert metrics['request_success_total{finished_reason="length"}'] == 1
        assert metrics["generation_tokens_total"] == 9
        assert metrics["request_generation_tokens_sum"] == 9
        assert metrics["time_to_first_token_seconds_count"] == 2
        assert metrics["inter_token_latency_seconds_count"] == 7
        labels = 'method="POST",route="/v1/completions",status="200"'
        assert metrics[f"http_requests_total{{{labels}}}"] == 1
        assert metrics['http_requests_total{method="GET",route="other",status="404"}'] == 1


async def test_gauges_follow_the_load() -> None:
    engine = FakeEngine(max_num_seqs=2, step_seconds=0.001)
    async with serving(engine) as s:
        tasks = [asyncio.ensure_future(s.completion("count", max_tokens=400)) for _ in range(5)]
        await eventually(lambda: engine.stats().num_waiting == 3)
        metrics = await s.metrics()
        assert metrics["num_requests_running"] == 2
        assert metrics["num_requests_waiting"] == 3
        assert metrics["kv_cache_usage_perc"] > 0
        assert metrics["http_requests_in_flight"] == 5 + 1  # that for the metrics
        await asyncio.gather(*tasks)
        metrics = await s.metrics()
        assert metrics["num_requests_running"] == metrics["num_requests_waiting"] == 0
        assert metrics["kv_cache_usage_perc"] == 0


async def test_formats() -> None:
    async with serving() as s:
        plain = await s.get("/metrics")
        assert plain.headers["content-type"].startswith("text/plain")
        new = await s.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
        assert new.headers["content-type"].startswith("application/openmetrics-text")
        assert new.body.endswith(b"# EOF\n")
        assert b"process_cpu_seconds_total" in plain.body


async def test_unknown_paths_are_one_label() -> None:
    async with serving() as s:
        for i in range(20):
            await s.get(f"/nope/{i}")
            await s.request("BREW" if i % 2 else "DELETE", "/health", None, {})
        assert len(s.server.http_requests) <= 4
