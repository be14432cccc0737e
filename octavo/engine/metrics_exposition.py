"""The engines' metrics for Prometheus, under the prefix `octavo:`.

`prometheus_client` is imported, and its families are built, only when somebody scrapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from octavo.contracts.messages import SchedulerStats
from octavo.engine.metrics import BLOCK_TIMES, HISTOGRAMS, EngineMetrics

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX = "octavo:"

_MODEL = ["model_name"]

_Read = Callable[[SchedulerStats], float]

_GAUGES: dict[str, tuple[str, _Read]] = {
    "num_requests_running": ("Sequences that are running.", lambda s: s.num_running),
    "num_requests_waiting": ("Sequences that wait to be scheduled.", lambda s: s.num_waiting),
    "kv_cache_usage_perc": (
        "Share of KV blocks that requests hold, 0 to 1.",
        lambda s: s.kv_cache_usage,
    ),
}
_COUNTERS: dict[str, tuple[str, _Read]] = {
    "prefix_cache_queries": (
        "Prompt tokens looked up in the prefix cache.",
        lambda s: s.prefix_queries,
    ),
    "prefix_cache_hits": ("Prompt tokens found in the prefix cache.", lambda s: s.prefix_hits),
    "num_preemptions": ("Preemptions.", lambda s: s.num_preemptions),
    "prompt_tokens": ("Prompt tokens of admitted requests.", lambda s: s.prompt_tokens),
    "generation_tokens": ("Generated tokens.", lambda s: s.generation_tokens),
}

CORE_FAMILIES = frozenset(
    PREFIX + name
    for name in (
        *_GAUGES,
        *_COUNTERS,
        "num_requests_waiting_by_reason",
        "iteration_tokens_total",
        *BLOCK_TIMES,
        "cache_config_info",
    )
)
"""Families that say what the core has said, the same to every front end."""


def collect(engines: Mapping[str, EngineMetrics]) -> Iterator[Metric]:
    """The metric families of several engines, keyed by the model's name."""
    yield from _of_the_core(engines)
    yield from _of_prompts(engines)
    yield from _of_ends(engines)
    yield from _histograms(engines)
    yield _cache_config(engines)


def _of_the_core(engines: Mapping[str, EngineMetrics]) -> Iterator[Metric]:
    """What the scheduler counts."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, (doc, read) in _GAUGES.items():
        gauge = GaugeMetricFamily(PREFIX + name, doc, labels=_MODEL)
        for model_name, metrics in engines.items():
            gauge.add_metric([model_name], float(read(metrics.stats)))
        yield gauge
    for name, (doc, read) in _COUNTERS.items():
        counter = CounterMetricFamily(PREFIX + name, doc, labels=_MODEL)
        for model_name, metrics in engines.items():
            counter.add_metric([model_name], float(read(metrics.stats)))
        yield counter
    waiting = GaugeMetricFamily(
        PREFIX + "num_requests_waiting_by_reason",
        "Sequences that wait: for room, or for something else (a grammar, a shared prompt).",
        labels=[*_MODEL, "reason"],
    )
    for model_name, metrics in engines.items():
        deferred = min(metrics.stats.num_deferred, metrics.stats.num_waiting)
        waiting.add_metric([model_name, "capacity"], metrics.stats.num_waiting - deferred)
        waiting.add_metric([model_name, "deferred"], deferred)
    yield waiting


def _of_prompts(engines: Mapping[str, EngineMetrics]) -> Iterator[Metric]:
    """Where the tokens of prompts came from."""
    from prometheus_client.core import CounterMetricFamily

    sources = CounterMetricFamily(
        PREFIX + "prompt_tokens_by_source",
        "Prompt tokens of requests that have begun: computed, or found in the prefix cache.",
        labels=[*_MODEL, "source"],
    )
    cached = CounterMetricFamily(
        PREFIX + "prompt_tokens_cached",
        "Prompt tokens of requests that have begun, found in the prefix cache.",
        labels=_MODEL,
    )
    for model_name, metrics in engines.items():
        for source, count in metrics.prompt_tokens_by_source.items():
            sources.add_metric([model_name, source], count)
        cached.add_metric([model_name], metrics.prompt_tokens_by_source["local_cache_hit"])
    yield from (sources, cached)


def _of_ends(engines: Mapping[str, EngineMetrics]) -> Iterator[Metric]:
    """How requests ended."""
    from prometheus_client.core import CounterMetricFamily

    done = CounterMetricFamily(
        PREFIX + "request_success", "Ended requests.", labels=[*_MODEL, "finished_reason"]
    )
    aborted = CounterMetricFamily(
        PREFIX + "request_aborts", "Aborted requests, by reason.", labels=[*_MODEL, "reason"]
    )
    for model_name, metrics in engines.items():
        for reason, count in metrics.finished.items():
            done.add_metric([model_name, reason], count)
        for reason, count in metrics.aborted.items():
            aborted.add_metric([model_name, reason], count)
    yield from (done, aborted)


def _histograms(engines: Mapping[str, EngineMetrics]) -> Iterator[Metric]:
    from prometheus_client.core import HistogramMetricFamily

    for name, doc in HISTOGRAMS.items():
        family = HistogramMetricFamily(PREFIX + name, doc, labels=_MODEL)
        for model_name, metrics in engines.items():
            histogram = metrics.histograms[name]
            family.add_metric(
                [model_name], buckets=histogram.cumulative(), sum_value=histogram.total
            )
        yield family


def _cache_config(engines: Mapping[str, EngineMetrics]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    info = GaugeMetricFamily(
        PREFIX + "cache_config_info",
        "The KV cache's configuration.",
        labels=[*_MODEL, "block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"],
    )
    for model_name, metrics in engines.items():
        if (c := metrics.cache) is not None:
            labels = [str(c.block_size), str(c.num_blocks), c.dtype, str(c.enable_prefix_caching)]
            info.add_metric([model_name, *labels], 1.0)
    return info
