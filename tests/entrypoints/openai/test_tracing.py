from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from octavo.entrypoints.openai.config import ServerConfig
from octavo.entrypoints.openai.tracing import Tracing, configured_tracing
from octavo.errors import ConfigError
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import eventually, serving
from tests.entrypoints.openai.sse_client import streaming

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


async def spans_of(*bodies: dict[str, Any], **headers: str) -> list[Any]:
    """The spans of completions."""
    exporter = InMemorySpanExporter()
    async with serving(tracing=Tracing(exporter)) as s:
        for body in bodies:
            await s.post("/v1/completions", {"prompt": "SAY:my secret words", **body}, **headers)
        await s.get("/v1/models", **headers)
        await s.get("/nope", **headers)
    return list(exporter.get_finished_spans())


async def test_a_span_per_generation() -> None:
    params = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 50, "n": 2}
    before = time.time_ns()
    (span,) = await spans_of(params, x_request_id="r1")
    assert span.name == "text_completion fake"
    assert before < span.start_time < span.end_time < time.time_ns()
    attributes = dict(span.attributes)
    latencies = {name: attributes.pop(name) for name in list(attributes) if "latency" in name}
    assert attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": "fake",
        "gen_ai.response.model": "fake",
        "gen_ai.request.id": "r1",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": len("SAY:my secret words"),
        "gen_ai.usage.output_tokens": 2 * (len("my secret words") + 1),
        "gen_ai.usage.cache_read.input_tokens": attributes["gen_ai.usage.cache_read.input_tokens"],
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
    }
    assert {name.removeprefix("gen_ai.latency.") for name in latencies} == {
        *("time_in_queue", "time_to_first_token", "e2e"),
        *("time_in_model_prefill", "time_in_model_decode", "time_in_model_inference"),
    }
    assert all(0 <= value < 60 for value in latencies.values())
    assert "secret" not in span.to_json()


async def test_a_span_in_the_background_ends_with_its_generation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter, engine = InMemorySpanExporter(), FakeEngine()
    engine.gate.clear()
    body = {"input": "SAY:later", "background": True}
    with caplog.at_level(logging.INFO, "octavo"):
        async with serving(engine, tracing=(tracing := Tracing(exporter))) as s:
            await s.post("/v1/responses", body, x_request_id="r1")
            await s.post("/v1/responses", {**body, "max_output_tokens": 0}, x_request_id="r2")
            answered = time.time_ns()
            await eventually(lambda: len(_fields_of(caplog, "r1")) == 1)
            engine.gate.set()
            await eventually(lambda: s.server.in_flight == 0)
    tracing.shutdown()
    (span,) = [
        s for s in exporter.get_finished_spans() if s.attributes["gen_ai.request.id"] == "r1"
    ]
    num_tokens = len("later") + 1
    assert span.name == "chat fake"
    assert span.end_time > answered
    assert span.attributes["gen_ai.usage.output_tokens"] == num_tokens
    assert span.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    http, generation = _fields_of(caplog, "r1")
    assert http["status"] == 200
    assert "generation_tokens" not in http
    assert generation["generation_tokens"] == num_tokens
    assert generation["prompt_tokens"] > 0
    assert generation["finish_reasons"] == ["stop"]
    assert [fields["status"] for fields in _fields_of(caplog, "r2")] == [400]


async def test_a_stream_whose_client_left_tells_of_its_generations_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter, engine = InMemorySpanExporter(), FakeEngine(step_seconds=0.002)
    body = {"prompt": "SAY:" + "x" * 50, "max_tokens": 100, "stream": True, "resumable": True}
    tracing = Tracing(exporter)
    with caplog.at_level(logging.INFO, "octavo"):
        async with serving(engine, tracing=tracing) as s:
            for request_id in ("stays", "leaves"):
                async with streaming(s, "/v1/completions", body, x_request_id=request_id) as stream:
                    await (stream.rest() if request_id == "stays" else stream.take(1))
            await eventually(lambda: len(_fields_of(caplog, "leaves")) == 1)
            left = time.time_ns()
    tracing.shutdown()
    stays, leaves = exporter.get_finished_spans()
    assert stays.attributes["gen_ai.request.id"] == "stays"
    assert stays.end_time < left < leaves.end_time
    assert {s.attributes["gen_ai.usage.output_tokens"] for s in (stays, leaves)} == {51}
    (one,) = _fields_of(caplog, "stays")
    http, generation = _fields_of(caplog, "leaves")
    assert "generation_tokens" not in http
    assert one["generation_tokens"] == generation["generation_tokens"] == 51
    assert generation["finish_reasons"] == ["stop"]


@pytest.mark.parametrize(
    ("path", "body", "leaves"),
    [
        ("/v1/completions", {"prompt": "FAIL:count", "stream": True}, False),
        ("/v1/completions", {"prompt": "FAIL:count", "stream": True, "resumable": True}, True),
        ("/v1/responses", {"input": "FAIL:count", "stream": True}, False),
        ("/v1/responses", {"input": "FAIL:count", "background": True}, False),
    ],
    ids=["stream", "resumable", "response", "background"],
)
async def test_what_fails_after_its_status_is_a_failure_all_the_same(
    path: str, body: dict[str, Any], leaves: bool, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter)
    with caplog.at_level(logging.INFO, "octavo"):
        async with serving(FakeEngine(step_seconds=0.01), tracing=tracing) as s:
            if leaves:
                async with streaming(s, path, body, x_request_id="r") as stream:
                    await stream.take(1)
            else:
                assert (await s.post(path, body, x_request_id="r")).status == 200
    tracing.shutdown()
    (span,) = exporter.get_finished_spans()
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["error.type"] == "500"
    assert not span.status.is_ok
    assert _fields_of(caplog, "r")[-1]["error"] == "request_failed"


def _fields_of(caplog: pytest.LogCaptureFixture, request_id: str) -> list[dict[str, Any]]:
    """The lines of a request, for programs."""
    fields = [getattr(record, "fields", {}) for record in caplog.records]
    return [f for f in fields if f.get("request_id") == request_id]


async def test_the_callers_trace_goes_on() -> None:
    (span,) = await spans_of({}, traceparent=f"00-{TRACE}-{PARENT}-01")
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{TRACE}", "00-" + "0" * 32 + "-x-01"])
async def test_what_is_no_trace_is_ignored(header: str) -> None:
    (span,) = await spans_of({}, traceparent=header)
    assert span.parent is None


async def test_a_trace_that_is_not_sampled_is_not_sent() -> None:
    assert await spans_of({}, traceparent=f"00-{TRACE}-{PARENT}-00") == []


async def test_errors() -> None:
    wrong, failed = await spans_of({"temperature": -1}, {"prompt": "FAIL:my secret"})
    assert wrong.attributes["http.response.status_code"] == 400
    assert wrong.status.is_unset
    assert failed.attributes["error.type"] == "500"
    assert not failed.status.is_ok
    assert "secret" not in wrong.to_json() + failed.to_json()


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A collector's URL, and what it was sent."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}/v1/traces", received
        http.shutdown()
        thread.join()


async def test_a_collector(collector: tuple[str, list[ExportTraceServiceRequest]]) -> None:
    url, received = collector
    tracing = configured_tracing(ServerConfig(otlp_traces_endpoint=url))
    async with serving(tracing=tracing) as s:
        await s.completion("SAY:x")
        await s.chat("SAY:x", stream=True)
    spans = [
        s for r in received for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans
    ]
    assert [span.name for span in spans] == ["text_completion fake", "chat fake"]
    (resource,) = {r.resource_spans[0].resource.SerializeToString() for r in received}
    assert b"service.name" in resource
    assert b"octavo" in resource


async def test_a_collector_that_is_not_there_stops_nothing() -> None:
    config = ServerConfig(otlp_traces_endpoint="http://127.0.0.1:9/v1/traces")
    started = time.monotonic()
    async with serving(tracing=configured_tracing(config)) as s:
        assert (await s.completion("SAY:x")).status == 200
        await asyncio.sleep(0)
    assert time.monotonic() - started < 20


def test_without_the_extra() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None
from octavo.entrypoints.openai.config import ServerConfig
from octavo.entrypoints.openai.tracing import configured_tracing
assert configured_tracing(ServerConfig()) is None
try:
    configured_tracing(ServerConfig(otlp_traces_endpoint="http://x"))
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ConfigError otlp_traces_endpoint='http://x' needs Open")
    assert "pip install 'octavo[otel]'" in done.stdout


def test_wrong_endpoints() -> None:
    for endpoint in ("localhost:4318", "grpc://x", ""):
        with pytest.raises(ConfigError, match="must be a URL"):
            ServerConfig(otlp_traces_endpoint=endpoint)
