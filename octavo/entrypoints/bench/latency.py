"""Latency: one request alone, at several prompt lengths."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from octavo.engine.llm_engine import LLMEngine
from octavo.entrypoints.bench.report import Report, machine
from octavo.entrypoints.bench.workload import Request, check_fits, random_prompt, submit, warm_up


@dataclass(frozen=True, kw_only=True)
class LatencyOptions:
    """Prompt lengths, tokens to generate, and how often each is repeated."""

    input_lens: tuple[int, ...] = (32, 256, 1024)
    output_len: int = 32
    repeats: int = 3
    seed: int = 0


def run(engine: LLMEngine, options: LatencyOptions) -> Report:
    """Every repeat has a prompt of its own, so that nothing comes from the prefix cache.

    Raises:
        ConfigError: a request of this workload is too long for the engine.
    """
    rng = np.random.default_rng(options.seed)
    vocab_size = engine.info.vocab_size
    workload = [
        [
            Request(random_prompt(rng, n, vocab_size), options.output_len)
            for _ in range(options.repeats)
        ]
        for n in options.input_lens
    ]
    for requests in workload:
        check_fits(requests, engine.config.model.max_model_len)
    warm_up(engine)
    rows: list[dict[str, Any]] = []
    for requests in workload:
        first: list[float] = []
        between: list[float] = []
        for i, request in enumerate(requests):
            times = _token_times(engine, f"{len(rows)}-{i}", request)
            first.append(times[0])
            between += np.diff(times).tolist()
        row = {
            "input_len": len(requests[0].prompt_token_ids),
            "ttft_ms": 1e3 * float(np.median(first)),
        }
        if between:
            p50, p99 = 1e3 * np.percentile(between, [50, 99])
            row |= {"inter_token_p50_ms": float(p50), "inter_token_p99_ms": float(p99)}
        rows.append(row)
    config = {"model": engine.config.model.model, **asdict(options)}
    return Report(benchmark="latency", config=config, results={"latency": rows}, machine=machine())


def _token_times(engine: LLMEngine, request_id: str, request: Request) -> list[float]:
    """Seconds from the request to each of its tokens."""
    times: list[float] = []
    start = time.perf_counter()
    submit(engine, request_id, request, temperature=0.0)
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.perf_counter() - start
        times += [now for o in outputs for c in o.outputs for _ in c.token_ids]
    return times
