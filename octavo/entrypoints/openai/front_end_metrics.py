"""The metrics of several front ends as those of one server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from octavo.engine.metrics_exposition import CORE_FAMILIES, PREFIX

SECONDS = 2.0
"""How long a front end may take to say its metrics: less than a scrape may take."""

_COUNTED = ("counter", "histogram")
_STARTED = "process_start_time_seconds"


@dataclass
class _Said:
    """What one front end has said last: its families by name, and when its process was started."""

    families: Mapping[str, Metric]
    started: float
    has_ended: bool = False


class FrontEndMetrics:
    """What the other front ends have said.

    One that does not answer in time has what it said last. One that has ended goes on having what
    it had counted, as a counter that went back would count twice what follows.

    Attributes:
        num_front_ends: the one that asks them included.
        num_answered: of these, the last time.
    """

    def __init__(self) -> None:
        self.num_front_ends = self.num_answered = 1
        self._said: dict[str, _Said] = {}
        self._ended: dict[str, list[Sample]] = {}  # by family, of processes that were replaced

    def hear(self, answers: Mapping[str, bytes | OSError]) -> None:
        """Take in a round.

        Args:
            answers: path of a front end's private socket → its exposition, as text, or why there is
                none.
        """
        self.num_front_ends = 1 + len(answers)
        self.num_answered = 1 + sum(isinstance(answer, bytes) for answer in answers.values())
        for address, answer in answers.items():
            said = self._said.get(address)
            if isinstance(answer, bytes):
                self._said[address] = now = _parsed(answer)
                if said is not None and said.started != now.started:
                    self._keep_counts(said)
            elif said is not None:
                nobody_listens = isinstance(answer, (ConnectionRefusedError, FileNotFoundError))
                said.has_ended = said.has_ended or nobody_listens

    def samples(self, family: Metric) -> Iterator[Sample]:
        """The others' samples of a family."""
        yield from self._ended.get(family.name, ())
        for said in self._said.values():
            if family.name in said.families and (not said.has_ended or family.type in _COUNTED):
                yield from said.families[family.name].samples

    def _keep_counts(self, said: _Said) -> None:
        for name, family in said.families.items():
            if family.type in _COUNTED:
                self._ended[name] = _sums([*self._ended.get(name, ()), *family.samples])


class MergedCollector(Collector):
    """The families of one front end, with those of the others added to them. What they all heard of
    the same engine core is taken once."""

    def __init__(self, own: Collector, others: FrontEndMetrics) -> None:
        self._own = own
        self._others = others

    def collect(self) -> Iterator[Metric]:
        for family in self._own.collect():
            if family.name not in CORE_FAMILIES:
                family.samples = _sums([*family.samples, *self._others.samples(family)])
            yield family
        yield from front_end_families(self._others)


def front_end_families(others: FrontEndMetrics) -> Iterator[Metric]:
    """How many front ends there are."""
    for name, doc, value in (
        ("front_ends", "Front ends of the server.", others.num_front_ends),
        (
            "front_ends_answering",
            "Front ends that have answered; what others count is as they said it last.",
            others.num_answered,
        ),
    ):
        yield GaugeMetricFamily(PREFIX + name, doc, value)


def _parsed(text: bytes) -> _Said:
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    started = families[_STARTED].samples[0].value if _STARTED in families else 0.0
    return _Said(families, started)


def _sums(samples: Iterable[Sample]) -> list[Sample]:
    """Samples of the same name and labels added up."""
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], Sample] = {}
    for sample in samples:
        key = (sample.name, tuple(sorted(sample.labels.items())))
        value = sample.value + (sums[key].value if key in sums else 0.0)
        sums[key] = Sample(sample.name, sample.labels, value)
    return list(sums.values())
