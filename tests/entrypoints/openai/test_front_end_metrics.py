from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from octavo.entrypoints.openai.front_end_metrics import FrontEndMetrics, MergedCollector
from octavo.entrypoints.openai.metrics import ServerCollector
from tests.entrypoints.openai.harness import serving

GONE = ConnectionRefusedError(111, "Connection refused")
SILENT = OSError("a front end did not answer /asked/metrics in 2.0 s")

REQUESTS = "octavo:http_requests_total"
SECONDS = "octavo:http_request_duration_seconds_count"
IN_FLIGHT = "octavo:http_requests_in_flight"
CORES = "octavo:generation_tokens_total"


def exposition(requests: int, *, in_flight: int = 0, started: float = 1.0) -> bytes:
    return f"""\
# TYPE {REQUESTS} counter
{REQUESTS}{{route="/a"}} {requests}
# TYPE octavo:http_request_duration_seconds histogram
octavo:http_request_duration_seconds_bucket{{le="+Inf",route="/a"}} {requests}
{SECONDS}{{route="/a"}} {requests}
octavo:http_request_duration_seconds_sum{{route="/a"}} 1.5
# TYPE {IN_FLIGHT} gauge
{IN_FLIGHT} {in_flight}
# TYPE {CORES} counter
{CORES} 50
# TYPE process_start_time_seconds gauge
process_start_time_seconds {started}
""".encode()


class Text(Collector):
    """What a front end itself has, from an exposition."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    def collect(self) -> object:  # type: ignore[override]
        from prometheus_client.parser import text_string_to_metric_families

        return text_string_to_metric_families(self._text.decode())


def total(others: FrontEndMetrics) -> tuple[float, float, float]:
    """(requests, requests in flight, the core's tokens) of one that has had 1, 1 and 50."""
    own = Text(exposition(1, in_flight=1))
    samples = {
        sample.name: sample.value
        for family in MergedCollector(own, others).collect()
        for sample in family.samples
    }
    assert samples["octavo:front_ends"] == others.num_front_ends
    assert samples["octavo:front_ends_answering"] == others.num_answered
    assert samples[SECONDS] == samples[REQUESTS]
    return samples[REQUESTS], samples[IN_FLIGHT], samples[CORES]


async def test_front_ends_are_added_up() -> None:
    """Counts of requests are; what both heard of the same core is not."""
    others = FrontEndMetrics()
    async with serving() as s:
        await s.completion("SAY:abc")
        own = ServerCollector(s.server)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(own)
        text = generate_latest(registry).replace(b'status="200"', b'status="418"')
        others.hear({"one": text, "two": text})
        once, both = _samples(own), _samples(MergedCollector(own, others))
    done = ("octavo:request_success_total", ("finished_reason", "stop"))
    assert once[done] == 1
    assert both[done] == 3
    for count in (("octavo:generation_tokens_total",), ("octavo:iteration_tokens_total_count",)):
        assert both[count] == once[count]
    inf = ("octavo:time_to_first_token_seconds_bucket", ("le", "+Inf"))
    assert both[inf] == 3
    assert both["octavo:http_requests_total", ("status", "200")] == 1
    assert both["octavo:http_requests_total", ("status", "418")] == 2
    assert both["octavo:front_ends",] == both["octavo:front_ends_answering",] == 3


def _samples(collector: Collector) -> dict[tuple[object, ...], float]:
    """(name, one of its labels) → value, and name → value."""
    samples: dict[tuple[object, ...], float] = {}
    for family in collector.collect():
        for s in family.samples:
            samples[(s.name,)] = s.value
            samples.update({(s.name, label): s.value for label in s.labels.items()})
    return samples


def test_one_that_is_silent_has_what_it_said_last() -> None:
    others = FrontEndMetrics()
    others.hear({"a": SILENT, "b": exposition(5, in_flight=2)})
    assert total(others) == (6, 3, 50)
    assert (others.num_answered, others.num_front_ends) == (2, 3)
    others.hear({"a": exposition(7, in_flight=3), "b": SILENT})
    assert total(others) == (13, 6, 50)
    others.hear({"a": SILENT, "b": SILENT})
    assert total(others) == (13, 6, 50)
    assert others.num_answered == 1
    others.hear({"a": exposition(8), "b": exposition(9)})
    assert total(others) == (18, 1, 50)


def test_no_counter_goes_back_when_one_is_started_anew() -> None:
    others = FrontEndMetrics()
    others.hear({"a": exposition(5, in_flight=2)})
    for _ in range(2):
        others.hear({"a": GONE})
        assert total(others) == (6, 1, 50)  # what it was answering, it is not
    others.hear({"a": exposition(0, started=2.0)})
    assert total(others) == (6, 1, 50)
    others.hear({"a": exposition(3, in_flight=1, started=2.0)})
    assert total(others) == (9, 2, 50)
    others.hear({"a": exposition(1, started=3.0)})  # nobody asked in between
    assert total(others) == (10, 1, 50)


async def test_without_one_of_them(tmp_path: Path) -> None:
    async with serving() as s:
        s.server.siblings = [str(tmp_path / "nobody.sock")]
        metrics = await s.metrics()
        assert (metrics["front_ends"], metrics["front_ends_answering"]) == (2, 1)
        s.server.siblings = []
        metrics = await s.metrics()
        assert (metrics["front_ends"], metrics["front_ends_answering"]) == (1, 1)
