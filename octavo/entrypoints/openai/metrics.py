"""GET /metrics: the engines' metrics, the server's own, and the process's."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from octavo.engine.metrics import PREFIX, collect
from octavo.entrypoints.openai.state import Server


class ServerCollector(Collector):
    """All metric families of a server but the process's own."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        server = self._server
        yield from collect({name: engine.metrics for name, engine in server.engines.items()})
        rejections = CounterMetricFamily(
            PREFIX + "admission_rejections", "Requests refused with 503.", labels=["reason"]
        )
        for reason, count in server.admission.rejections.items():
            rejections.add_metric([reason], count)
        yield rejections
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


def expose(server: Server, accept: str) -> tuple[bytes, str]:
    """(body, content type) in the format that the `Accept` header asks for."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServerCollector(server))
    ProcessCollector(registry=registry)
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
