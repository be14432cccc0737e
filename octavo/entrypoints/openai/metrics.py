"""GET /metrics: the engines' metrics, the server's own, and the process's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from octavo.engine.metrics import PREFIX, collect
from octavo.entrypoints.openai.keys import ApiKey
from octavo.entrypoints.openai.quotas import REJECTIONS, KeyAccount
from octavo.entrypoints.openai.state import Server

_KEY_COUNTERS: tuple[tuple[str, str, Callable[[KeyAccount], int]], ...] = (
    ("api_key_requests", "Requests let in, by API key.", lambda a: a.num_requests),
    ("api_key_prompt_tokens", "Prompt tokens, by API key.", lambda a: a.prompt_tokens),
    ("api_key_generation_tokens", "Generated tokens, by API key.", lambda a: a.generation_tokens),
)


class ServerCollector(Collector):
    """All metric families of a server but the process's own."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        server = self._server
        yield from collect({name: engine.metrics for name, engine in server.engines.items()})
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
        http = CounterMetricFamily(
            PREFIX + "http_requests", "HTTP requests.", labels=["route", "method", "status"]
        )
        for (route, method, status), count in server.http_requests.items():
            http.add_metric([route, method, str(status)], count)
        yield http
        in_flight = GaugeMetricFamily(
            PREFIX + "http_requests_in_flight", "Requests being answered."
        )
        in_flight.add_metric([], server.in_flight)
        yield in_flight


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


def expose(server: Server, accept: str) -> tuple[bytes, str]:
    """(body, content type) in the format that the `Accept` header asks for."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServerCollector(server))
    ProcessCollector(registry=registry)
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
