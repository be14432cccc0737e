"""The benchmark of steps in flight: fair rounds, on engines of both kinds."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from pathlib import Path

import pytest

from octavo.config.engine import EngineConfig
from octavo.contracts.messages import SchedulerStats
from octavo.entrypoints.bench.pipeline import Driver, PipelineOptions, run, started
from octavo.entrypoints.bench.workload import Request
from tests.tiny_model import write_tiny_llama


class Clock(Driver):
    """Takes as long as it is told to, and notes what it ran."""

    def __init__(self, depth: int, seconds: float, log: list[tuple[int, str]]) -> None:
        self.depth = depth
        self.seconds = seconds
        self.log = log
        self.prompts: list[list[int]] = []
        self._stats = SchedulerStats()

    def run(self, requests: Sequence[Request], name: str) -> float:
        self.log.append((self.depth, name))
        self.prompts += [r.prompt_token_ids for r in requests]
        self._stats.num_steps += requests[0].num_output_tokens
        self._stats.forward_seconds += 0.75
        return self.seconds

    def stats(self) -> SchedulerStats:
        return copy(self._stats)


def test_rounds_are_interleaved_and_the_work_is_the_same() -> None:
    log: list[tuple[int, str]] = []
    drivers = {1: Clock(1, 2.0, log), 2: Clock(2, 1.0, log)}
    options = PipelineOptions(batch_sizes=(1, 3), output_len=10, rounds=2)
    report = run(drivers, options, model="m", vocab_size=50)
    assert log == [
        *((1, "warm-1"), (2, "warm-2")),
        *((1, "0-1"), (2, "0-1"), (1, "0-3"), (2, "0-3")),
        *((2, "1-1"), (1, "1-1"), (2, "1-3"), (1, "1-3")),
    ]
    assert drivers[1].prompts[1:] == drivers[2].prompts[1:]
    assert len({tuple(p) for p in drivers[1].prompts}) == 9  # nothing from the prefix cache
    rows = report.results["depths"]
    assert [(r["batch_size"], r["pipeline_depth"]) for r in rows] == [
        (1, 1),
        (1, 2),
        (3, 1),
        (3, 2),
    ]
    assert [r["tokens_per_second"] for r in rows] == [5.0, 10.0, 15.0, 30.0]
    assert [r["ratio_to_depth_1"] for r in rows] == [1.0, 2.0, 1.0, 2.0]
    assert [r["step_ms"] for r in rows] == [200.0, 100.0, 200.0, 100.0]
    assert [r["beside_forward_ms"] for r in rows] == [125.0, 25.0, 125.0, 25.0]


@pytest.mark.parametrize("is_served", [False, True])
def test_on_real_engines(tmp_path: Path, is_served: bool) -> None:
    config = EngineConfig.from_flat(
        model=str(write_tiny_llama(tmp_path)), num_threads=1, num_gpu_blocks_override=64
    )
    options = PipelineOptions(batch_sizes=(2,), output_len=4, rounds=1, is_served=is_served)
    with started(config, (1, 2), is_served=is_served) as (drivers, vocab_size):
        report = run(drivers, options, model="tiny", vocab_size=vocab_size)
    rows = report.results["depths"]
    assert [r["pipeline_depth"] for r in rows] == [1, 2]
    assert all(r["tokens_per_second"] > 0 for r in rows)
    assert all(0 < r["beside_forward_ms"] < r["step_ms"] for r in rows)
