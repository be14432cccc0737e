"""Throughput: many requests at once, as fast as the engine can."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from octavo.contracts.messages import RequestOutput
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
class ThroughputOptions:
    """The workload: lengths are uniform in [mean / 2, 3 mean / 2]."""

    num_prompts: int = 32
    input_len: int = 128
    output_len: int = 64
    seed: int = 0


def run(engine: LLMEngine, options: ThroughputOptions) -> Report:
    """All requests are there from the start; every other one is greedy.

    Raises:
        ConfigError: a request of this workload is too long for the engine.
    """
    rng = np.random.default_rng(options.seed)
    vocab_size = engine.info.vocab_size
    lengths = zip(
        uniform_lengths(rng, options.input_len, options.num_prompts),
        uniform_lengths(rng, options.output_len, options.num_prompts),
    )
    requests = [Request(random_prompt(rng, i, vocab_size), o) for i, o in lengths]
    check_fits(requests, engine.config.model.max_model_len)
    warm_up(engine)
    before = engine.stats()
    peak = 0.0

    def watch(outputs: list[RequestOutput]) -> None:
        nonlocal peak
        peak = max(peak, engine.stats().kv_cache_usage)

    for i, request in enumerate(requests):
        submit(engine, str(i), request, temperature=float(i % 2))
    seconds, num_generated = drain(engine, watch)
    after = engine.stats()
    num_prompt = sum(len(r.prompt_token_ids) for r in requests)
    results = {
        "seconds": seconds,
        "requests_per_second": len(requests) / seconds,
        "input_tokens_per_second": num_prompt / seconds,
        "output_tokens_per_second": num_generated / seconds,
        "input_tokens": num_prompt,
        "output_tokens": num_generated,
        "steps": after.num_steps - before.num_steps,
        "peak_kv_cache_usage": peak,
        "preemptions": after.num_preemptions - before.num_preemptions,
    }
    config = {"model": engine.config.model.model, **asdict(options)}
    return Report(benchmark="throughput", config=config, results=results, machine=machine())
