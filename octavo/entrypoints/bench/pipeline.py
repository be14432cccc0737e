"""What steps in flight are worth: the same work at several depths, in interleaved rounds; and what
a step costs beside its forward.

Depth 1 computes a step while nothing else happens; deeper, the next step is scheduled and the last
one's outputs are processed meanwhile, in a second thread of the core.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np

from octavo.config.engine import EngineConfig
from octavo.contracts.messages import SchedulerStats
from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.input_processor import TokensPrompt
from octavo.engine.llm_engine import LLMEngine
from octavo.entrypoints.bench.report import Report, machine
from octavo.entrypoints.bench.workload import Request, random_prompt


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """The work: `batch_sizes` requests at once, all of the same lengths.

    Attributes:
        rounds: every depth runs every batch once per round; which one is first rotates.
        is_served: the engines are in processes of their own, as `octavo serve` has them.
    """

    batch_sizes: tuple[int, ...] = (1, 8, 32)
    input_len: int = 32
    output_len: int = 64
    rounds: int = 3
    seed: int = 0
    is_served: bool = False


class Driver(Protocol):
    """An engine of one depth."""

    def run(self, requests: Sequence[Request], name: str) -> float:
        """Seconds from the first request to the last token. `name` is unique."""

    def stats(self) -> SchedulerStats:
        """The scheduler's counters after the last `run`."""

    def close(self) -> None:
        """Stop the engine."""


class InProcess:
    """An engine in this process."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine

    def run(self, requests: Sequence[Request], name: str) -> float:
        start = time.perf_counter()
        for i, request in enumerate(requests):
            prompt = TokensPrompt(prompt_token_ids=request.prompt_token_ids)
            self._engine.add_request(f"{name}-{i}", prompt, _params(request))
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return time.perf_counter() - start

    def stats(self) -> SchedulerStats:
        return self._engine.stats()

    def close(self) -> None:
        self._engine.shutdown()


class Served:
    """An engine in a process of its own, on an event loop that runs while requests do."""

    def __init__(self, engine: AsyncLLM, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop

    def run(self, requests: Sequence[Request], name: str) -> float:
        return self._loop.run_until_complete(self._run(requests, name))

    async def _run(self, requests: Sequence[Request], name: str) -> float:
        async def read(i: int, request: Request) -> None:
            prompt = TokensPrompt(prompt_token_ids=request.prompt_token_ids)
            async for _ in self._engine.generate(prompt, _params(request), f"{name}-{i}"):
                pass

        start = time.perf_counter()
        await asyncio.gather(*(read(i, r) for i, r in enumerate(requests)))
        return time.perf_counter() - start

    def stats(self) -> SchedulerStats:
        return self._engine.stats()

    def close(self) -> None:
        self._loop.run_until_complete(self._engine.shutdown())


@contextmanager
def started(
    config: EngineConfig, depths: Sequence[int], *, is_served: bool
) -> Iterator[tuple[dict[int, Driver], int]]:
    """Engines by depth, and the size of their vocabulary. Raises as LLMEngine and AsyncLLM do."""
    drivers: dict[int, Driver] = {}
    vocab_size = 0
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        try:
            for depth in depths:
                scheduler = replace(config.scheduler, pipeline_depth=depth)
                deep = replace(config, scheduler=scheduler)
                if is_served:
                    engine = loop.run_until_complete(AsyncLLM.start(deep))
                    drivers[depth] = Served(engine, loop)
                    vocab_size = engine.info.vocab_size
                else:
                    local = LLMEngine.from_config(deep)
                    drivers[depth] = InProcess(local)
                    vocab_size = local.info.vocab_size
            yield drivers, vocab_size
        finally:
            for driver in drivers.values():
                driver.close()
            loop.run_until_complete(loop.shutdown_default_executor())


def run(
    drivers: Mapping[int, Driver], options: PipelineOptions, *, model: str, vocab_size: int
) -> Report:
    """Run the rounds on the engines, keyed by depth; each gets the same requests.

    Returns:
        A row per batch size and depth: median tokens per second; the median over rounds of the
        ratio to the first depth's of the same round; of a step, the milliseconds that it took and
        those of them in which no forward ran: scheduling, sampling, outputs.
    """
    rng = np.random.default_rng(options.seed)
    for depth, driver in drivers.items():
        driver.run([Request(random_prompt(rng, options.input_len, vocab_size), 8)], f"warm-{depth}")
    depths = list(drivers)
    seconds: dict[tuple[int, int], list[float]] = {}
    steps: dict[tuple[int, int], list[tuple[float, float]]] = {}  # ms of one, ms beside its forward
    for number in range(options.rounds):
        first = number % len(depths)
        for n in options.batch_sizes:
            requests = [
                Request(random_prompt(rng, options.input_len, vocab_size), options.output_len)
                for _ in range(n)
            ]
            for depth in depths[first:] + depths[:first]:
                before = drivers[depth].stats()
                measured = drivers[depth].run(requests, f"{number}-{n}")
                seconds.setdefault((n, depth), []).append(measured)
                after = drivers[depth].stats()
                num_steps = after.num_steps - before.num_steps
                beside = measured - (after.forward_seconds - before.forward_seconds)
                step = (1e3 * measured / num_steps, 1e3 * beside / num_steps)
                steps.setdefault((n, depth), []).append(step)
    rows: list[dict[str, Any]] = []
    for n in options.batch_sizes:
        base = np.array(seconds[n, depths[0]])
        for depth in depths:
            took = np.array(seconds[n, depth])
            ratios = base / took
            step_ms, beside_ms = np.median(steps[n, depth], axis=0).tolist()
            rows.append(
                {
                    "batch_size": n,
                    "pipeline_depth": depth,
                    "tokens_per_second": float(np.median(n * options.output_len / took)),
                    f"ratio_to_depth_{depths[0]}": float(np.median(ratios)),
                    "ratio_min": float(ratios.min()),
                    "ratio_max": float(ratios.max()),
                    "step_ms": step_ms,
                    "beside_forward_ms": beside_ms,
                }
            )
    config = {"model": model, "depths": depths, **asdict(options)}
    return Report(benchmark="pipeline", config=config, results={"depths": rows}, machine=machine())


def _params(request: Request) -> SamplingParams:
    return SamplingParams(
        temperature=0.0,
        seed=0,
        max_tokens=request.num_output_tokens,
        ignore_eos=True,
        output_kind=RequestOutputKind.DELTA,
    )
