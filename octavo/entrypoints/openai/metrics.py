"""GET /metrics: the engines' metrics, the server's own, and the process's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from octavo.engine.metrics_exposition import PREFIX, collect
from octavo.entrypoints.openai.chat_output import ToolCallCounts
from octavo.entrypoints.openai.front_end_metrics import FrontEndMetrics, MergedCollector
from octavo.entrypoints.openai.keys import ApiKey
from octavo.entrypoints.openai.quotas import REJECTIONS, KeyAccount
from octavo.entrypoints.openai.state import Server

if TYPE_CHECKING:
    from octavo.entrypoints.batches.service import BatchService

_KEY_COUNTERS: tuple[tuple[str, str, Callable[[KeyAccount], int]], ...] = (
    ("api_key_requests", "Requests let in, by API key.", lambda a: a.num_requests),
    ("api_key_prompt_tokens", "Prompt tokens, by API key.", lambda a: a.prompt_tokens),
    ("api_key_generation_tokens", "Generated tokens, by API key.", lambda a: a.generation_tokens),
)

_TOOL_COUNTERS: tuple[tuple[str, str, Callable[[ToolCallCounts], int]], ...] = (
    (
        "tool_call_parser_invocations",
        "Answers that were searched for tool calls.",
        lambda c: c.parsed,
    ),
    ("tool_calls", "Tool calls in answers.", lambda c: c.calls),
)


class ServerCollector(Collector):
    """All metric families of a server but the process's own."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        engines = self._server.engines
        yield from collect({name: engine.metrics for name, engine in engines.items()})
        yield from server_families(self._server)


def server_families(server: Server) -> Iterator[Metric]:
    """The server's own families: without the engines'."""
    rejections = CounterMetricFamily(
        PREFIX + "admission_rejections", "Requests refused with 503 or 429.", labels=["reason"]
    )
    for reason, count in server.admission.rejections.items():
        rejections.add_metric([reason], count)
    for reason in REJECTIONS:
        refused = sum(key.account.rejections[reason] for key in server.keys)
        rejections.add_metric([reason], refused)
    yield rejections
    yield from _keys(server.keys)
    yield from _tool_calls(server.tool_calls)
    http = CounterMetricFamily(
        PREFIX + "http_requests", "HTTP requests.", labels=["route", "method", "status"]
    )
    for (route, method, status), count in server.http_requests.items():
        http.add_metric([route, method, str(status)], count)
    yield http
    seconds = HistogramMetricFamily(
        PREFIX + "http_request_duration_seconds",
        "Seconds from an HTTP request's head to the end of its answer.",
        labels=["route"],
    )
    for route, histogram in server.http_seconds.items():
        seconds.add_metric([route], buckets=histogram.cumulative(), sum_value=histogram.total)
    yield seconds
    in_flight = GaugeMetricFamily(PREFIX + "http_requests_in_flight", "Requests being answered.")
    in_flight.add_metric([], server.in_flight)
    yield in_flight
    if server.batches is not None:
        yield from _batches(server.batches)


def _tool_calls(counts_of: Mapping[str, ToolCallCounts]) -> Iterator[Metric]:
    for name, doc, read in _TOOL_COUNTERS:
        family = CounterMetricFamily(PREFIX + name, doc, labels=["model_name"])
        for model_name, counts in counts_of.items():
            family.add_metric([model_name], read(counts))
        yield family


def _batches(batches: BatchService) -> Iterator[Metric]:
    for name, help_text, value in (
        ("batches_running", "Batches that run.", batches.num_active),
        (
            "batch_lines_waiting",
            "Lines of batches that wait to run.",
            batches.num_waiting,
        ),
        ("batch_lines_running", "Lines of batches in flight.", batches.slots.num_running),
    ):
        gauge = GaugeMetricFamily(PREFIX + name, help_text)
        gauge.add_metric([], value)
        yield gauge
    lines = CounterMetricFamily(
        PREFIX + "batch_lines", "Lines of batches that are done.", labels=["outcome"]
    )
    for outcome, count in batches.num_finished.items():
        lines.add_metric([outcome], count)
    yield lines


def _keys(keys: Iterable[ApiKey]) -> Iterator[Metric]:
    """What each API key has used, by its name."""
    for name, doc, read in _KEY_COUNTERS:
        family = CounterMetricFamily(PREFIX + name, doc, labels=["key"])
        for key in keys:
            family.add_metric([key.name], read(key.account))
        yield family
    refused = CounterMetricFamily(
        PREFIX + "api_key_rejections",
        "Requests refused with 429, by API key.",
        labels=["key", "reason"],
    )
    for key in keys:
        for reason, count in key.account.rejections.items():
            refused.add_metric([key.name, reason], count)
    yield refused


def expose(server: Server, accept: str, others: FrontEndMetrics) -> tuple[bytes, str]:
    """(body, content type) in the format that the `Accept` header asks for."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MergedCollector(ServerCollector(server), others))
    ProcessCollector(registry=registry)
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
