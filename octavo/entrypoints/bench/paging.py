"""Paging: what block tables and continuous batching are worth, on one trace.

Three measurements, as in Kwon et al., *Efficient Memory Management for Large Language Model Serving
with PagedAttention* (2023), section 6:

- **Waste.** A Poisson trace with mixed lengths saturates a small pool. At every step, each running
  request's allocated slots less the tokens stored in them, in blocks; and how much of the pool is
  in use while requests wait for it.
- **Continuous against static batching** on the same kernels. Static batching (Yu et al., *Orca*,
  2022, section 2) takes requests in order, as many as fit with their full lengths; every row of the
  batch is computed until the longest has ended, and then comes the next batch. The early-exit
  variant is kinder to it than engines with one rectangular batch are: ended rows cost nothing.
- **A shared prefix**: how many of its tokens are computed.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from octavo.contracts.features import SchedulerHook
from octavo.contracts.kv_spec import BLOCK_SIZE
from octavo.contracts.messages import SchedulerStats
from octavo.contracts.step import SchedulerOutput
from octavo.engine.llm_engine import LLMEngine
from octavo.entrypoints.bench.report import Report, machine
from octavo.entrypoints.bench.workload import (
    Request,
    check_fits,
    drain,
    random_prompt,
    submit,
    uniform_lengths,
    warm_up,
)


@dataclass(frozen=True, kw_only=True)
class PagingOptions:
    """The trace. Prompt lengths are uniform around their mean, output lengths exponential (cut at
    four times the mean), arrivals Poisson with `rate` requests per step."""

    num_requests: int = 64
    input_len: int = 32
    output_len: int = 48
    rate: float = 2.0
    prefix_len: int = 1000
    num_prefix_requests: int = 8
    seed: int = 0


def run(engine: LLMEngine, options: PagingOptions, occupancy: Occupancy) -> Report:
    """Run all three on an engine whose pool the trace can saturate.

    Args:
        occupancy: a hook of this engine.

    Raises:
        ConfigError: a request of this workload is too long for the engine.
    """
    rng = np.random.default_rng(options.seed)
    trace = _trace(rng, options, engine.info.vocab_size)
    prefix = _prefix_requests(rng, options, engine.info.vocab_size)
    check_fits(trace + prefix, engine.config.model.max_model_len)
    warm_up(engine)
    arrivals = np.cumsum(rng.exponential(1 / options.rate, len(trace))).tolist()
    occupancy.forget()
    continuous = _run_continuous(engine, trace, arrivals, occupancy)
    observed = occupancy.results()
    static = _run_static(engine, trace, early_exit=False)
    early_exit = _run_static(engine, trace, early_exit=True)
    results = {
        **observed,
        "continuous_tokens_per_second": continuous,
        "static_tokens_per_second": static,
        "static_early_exit_tokens_per_second": early_exit,
        "continuous_over_static": continuous / static,
        "continuous_over_static_early_exit": continuous / early_exit,
        **_run_prefix(engine, prefix, options.prefix_len),
    }
    config = {"model": engine.config.model.model, **asdict(options)}
    return Report(benchmark="paging", config=config, results=results, machine=machine())


def _trace(rng: np.random.Generator, options: PagingOptions, vocab_size: int) -> list[Request]:
    inputs = uniform_lengths(rng, options.input_len, options.num_requests)
    outputs = rng.exponential(options.output_len, options.num_requests)
    outputs = np.clip(np.ceil(outputs), 1, 4 * options.output_len).astype(int).tolist()
    return [Request(random_prompt(rng, i, vocab_size), o) for i, o in zip(inputs, outputs)]


def _prefix_requests(
    rng: np.random.Generator, options: PagingOptions, vocab_size: int
) -> list[Request]:
    prefix = random_prompt(rng, options.prefix_len, vocab_size)
    return [
        Request(prefix + random_prompt(rng, BLOCK_SIZE, vocab_size), 4)
        for _ in range(options.num_prefix_requests)
    ]


class Occupancy(SchedulerHook):
    """Watches the steps as the workers get them: slots and stored tokens of each request."""

    name = "occupancy"

    def __init__(self) -> None:
        self._num_blocks: dict[str, int] = {}
        self._num_stored: dict[str, int] = {}
        self.wastes: list[float] = []
        self.usage: list[float] = []

    def build_step_meta(self, step: SchedulerOutput) -> None:
        """Follow the step, as a worker does; it needs to hear nothing of this."""
        for request_id in (*step.finished_request_ids, *step.preempted_request_ids):
            self._num_blocks.pop(request_id, None)
            self._num_stored.pop(request_id, None)
        for new in step.new_requests:
            self._num_blocks[new.request_id] = len(new.block_ids[0])
            self._num_stored[new.request_id] = new.num_computed_tokens
        for request_id, block_ids in step.cached_requests.new_block_ids.items():
            self._num_blocks[request_id] += len(block_ids[0])
        for request_id, num_tokens in step.num_scheduled_tokens.items():
            self._num_stored[request_id] += num_tokens
        self.wastes += [
            self._num_blocks[r] - stored / BLOCK_SIZE for r, stored in self._num_stored.items()
        ]

    def forget(self) -> None:
        """Begin the measurement here."""
        self.wastes.clear()
        self.usage.clear()

    def look_at_pool(self, stats: SchedulerStats) -> None:
        """Note the use of the pool while requests wait for it."""
        if stats.num_waiting:
            self.usage.append(stats.kv_cache_usage)

    def results(self) -> dict[str, Any]:
        """What was seen since `forget`."""
        return {
            "kv_waste_blocks_per_request_max": max(self.wastes),
            "kv_waste_blocks_per_request_mean": float(np.mean(self.wastes)),
            "blocks_in_use_when_saturated": float(np.mean(self.usage)) if self.usage else None,
            "saturated_steps": len(self.usage),
        }


def _run_continuous(
    engine: LLMEngine, trace: list[Request], arrivals: list[float], occupancy: Occupancy
) -> float:
    """Requests arrive at their step and run when there is room. Returns tokens per second."""
    waiting = deque(zip(itertools.count(), arrivals, trace))
    start = time.perf_counter()
    for step in itertools.count():
        while waiting and waiting[0][1] <= step:
            i, _, request = waiting.popleft()
            submit(engine, f"continuous-{i}", request, temperature=0.0)
        if not waiting and not engine.has_unfinished_requests():
            break
        engine.step()
        occupancy.look_at_pool(engine.stats())
    return sum(r.num_output_tokens for r in trace) / (time.perf_counter() - start)


def _run_static(engine: LLMEngine, trace: list[Request], *, early_exit: bool) -> float:
    """Batch after batch. Returns useful tokens per second."""
    engine.reset_prefix_cache()
    start = time.perf_counter()
    for b, batch in enumerate(_batches(engine, trace, early_exit)):
        for i, request in enumerate(batch):
            submit(engine, f"static-{early_exit}-{b}-{i}", request, temperature=0.0)
        drain(engine)
    return sum(r.num_output_tokens for r in trace) / (time.perf_counter() - start)


def _batches(engine: LLMEngine, trace: list[Request], early_exit: bool) -> Iterator[list[Request]]:
    """Requests in order, as many at once as fit with the lengths that they are computed to."""
    pool = engine.info.kv_cache_config.num_blocks - 1
    most = engine.config.scheduler.max_num_seqs
    batch: list[Request] = []
    for request in trace:
        grown = [*batch, request]
        if not early_exit:
            longest = max(r.num_output_tokens for r in grown)
            grown = [Request(r.prompt_token_ids, longest) for r in grown]
        num_blocks = sum(-(-r.num_tokens // BLOCK_SIZE) for r in grown)
        if batch and (len(grown) > most or num_blocks > pool):
            yield batch
            grown = [request]
        batch = grown
    yield batch


def _run_prefix(engine: LLMEngine, requests: list[Request], prefix_len: int) -> dict[str, Any]:
    """All requests at once; how many of the tokens in full blocks of the prefix were computed."""
    engine.reset_prefix_cache()
    for i, request in enumerate(requests):
        submit(engine, f"prefix-{i}", request, temperature=0.0)
    shareable = prefix_len // BLOCK_SIZE * BLOCK_SIZE
    computed: dict[str, int] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            computed[output.request_id] = shareable - min(shareable, output.num_cached_tokens)
    return {
        "prefix_tokens_in_full_blocks": shareable,
        "prefix_tokens_asked_for": shareable * len(requests),
        "prefix_tokens_computed": sum(computed.values()),
    }
