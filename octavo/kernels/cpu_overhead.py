"""What a step program costs beside its kernels."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import numpy as np

from octavo.kernels.cpu import CpuBackend
from octavo.kernels.ops import Graph, Ops, StepInputs, StepLimits


@dataclass(frozen=True, kw_only=True)
class ProgramOverhead:
    """Attributes:
    run_us: µs of a whole replay that computes nothing: from Python into the thread pool and back.
    op_us: µs that each further op adds: its dispatch on every thread, and the barrier before it.
    """

    run_us: float
    op_us: float


def measure_overhead(
    backend: CpuBackend, *, num_ops: int = 1000, num_runs: int = 50
) -> ProgramOverhead:
    """Time programs of next to empty ops (`signal` to a counter), one and `num_ops` of them, on the
    back end's threads; medians over `num_runs` replays of each, in turns."""
    few, many = _signals(backend, 1), _signals(backend, 1 + num_ops)
    step = _one_token()
    few_us, many_us = [], []
    for _ in range(num_runs):
        few_us.append(_replay_us(few, step))
        many_us.append(_replay_us(many, step))
    run_us = median(few_us)
    return ProgramOverhead(run_us=run_us, op_us=(median(many_us) - run_us) / num_ops)


def _signals(backend: CpuBackend, num_ops: int) -> Graph:
    def forward(ops: Ops) -> None:
        ops.output("x", ops.input("x", 1))
        for _ in range(num_ops):
            ops.signal(0)

    limits = StepLimits(
        max_tokens=1, max_requests=1, max_logit_rows=1, max_blocks_per_request=1, max_position=1
    )
    return backend.capture(forward, limits)


def _one_token() -> StepInputs:
    zero = np.zeros(1, dtype=np.int32)
    return StepInputs(
        token_ids=zero,
        positions=zero,
        query_start=np.array([0, 1], dtype=np.int32),
        seq_lens=np.ones(1, dtype=np.int32),
        block_tables=[],
        slot_mapping=[],
        logit_rows=zero,
        extra={"x": np.zeros((1, 1), dtype=np.float32)},
    )


def _replay_us(graph: Graph, step: StepInputs) -> float:
    start = time.perf_counter()
    graph.replay(step)
    return (time.perf_counter() - start) * 1e6
