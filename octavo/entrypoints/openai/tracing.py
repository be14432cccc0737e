"""OpenTelemetry traces: a span per generation, sent to a collector (OTLP over HTTP).

Attributes are those of the semantic conventions for generative AI (`gen_ai.*`), and vLLM's
`gen_ai.latency.*`; never what a user or a model wrote. A caller's `traceparent` is the parent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError, shown
from octavo.log import get_logger
from octavo.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from octavo.entrypoints.openai.config import ServerConfig
    from octavo.entrypoints.openai.record import RequestRecord

FLUSH_SECONDS = 3.0
"""How long the end of the server waits for spans to be sent."""

_OPERATIONS = {"/v1/completions": "text_completion", "/inference/v1/generate": "text_completion"}
_PROPAGATED = frozenset({b"traceparent", b"tracestate"})
_PARAMS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "n": "gen_ai.request.choice.count",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}


class Tracing:
    """Sends the spans of one server.

    Args:
        exporter: where they go.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        logging.getLogger("opentelemetry").handlers = get_logger("octavo").handlers
        resource = Resource.create({"service.version": __version__})
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "octavo"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("octavo", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._trace = trace

    def export(self, record: RequestRecord) -> None:
        """A request and its generation have ended. One that asked no model has no span."""
        if record.model is None:
            return
        carrier = {n.decode(): v.decode("latin-1") for n, v in record.headers if n in _PROPAGATED}
        operation = _OPERATIONS.get(record.route, "chat")
        span = self._tracer.start_span(
            f"{operation} {record.model}",
            context=self._propagator.extract(carrier),
            kind=self._trace.SpanKind.SERVER,
            attributes=_attributes(record, operation),
            start_time=record.started_ns,
        )
        if record.final_status >= 500:
            span.set_status(self._trace.StatusCode.ERROR)
            span.set_attribute("error.type", str(record.final_status))
        span.end(record.started_ns + int((time.monotonic() - record.started) * 1e9))

    def shutdown(self) -> None:
        """Send what is left, for `FLUSH_SECONDS` at most."""
        flush = threading.Thread(target=self._provider.shutdown, daemon=True)
        flush.start()
        flush.join(FLUSH_SECONDS)


def _attributes(record: RequestRecord, operation: str) -> Mapping[str, Any]:
    values: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.request.id": record.request_id,
        "gen_ai.response.finish_reasons": list(record.finish_reasons),
        "gen_ai.usage.input_tokens": record.num_prompt_tokens,
        "gen_ai.usage.output_tokens": record.num_generated_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.num_cached_tokens,
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
    }
    if record.params is not None:
        for name, attribute in _PARAMS.items():
            values[attribute] = getattr(record.params, name)
    if record.key is not None:
        values["octavo.key"] = record.key.name
    for name, start, end in (
        ("time_in_queue", record.arrival, record.scheduled),
        ("time_to_first_token", record.arrival, record.first_token),
        ("time_in_model_prefill", record.scheduled, record.first_token),
        ("time_in_model_decode", record.first_token, record.last_token),
        ("time_in_model_inference", record.scheduled, record.last_token),
        ("e2e", record.arrival, record.last_token),
    ):
        if start is not None and end is not None:
            values[f"gen_ai.latency.{name}"] = end - start
    return {name: value for name, value in values.items() if value is not None}


def configured_tracing(config: ServerConfig) -> Tracing | None:
    """Tracing to the configured collector. Raises ConfigError: the extra is missing."""
    endpoint = config.otlp_traces_endpoint
    if endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise ConfigError(
            f"otlp_traces_endpoint={shown(endpoint)} needs OpenTelemetry: pip install "
            "'octavo[otel]'"
        ) from None
    return Tracing(OTLPSpanExporter(endpoint=endpoint))
