"""Rounds over fake drivers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from benchmarks.side_by_side.driver_process import DriverProcess
from benchmarks.side_by_side.environments import InstallError
from benchmarks.side_by_side.results import Results
from benchmarks.side_by_side.session import loaded, run_round
from benchmarks.side_by_side.workloads import Workload
from octavo.entrypoints.bench.costs import Cost
from octavo.kernels.cpu_ceilings import Ceilings

FAKE = Path(__file__).parent / "fake_driver.py"
SMALL = Workload(name="small", num_prompts=2, input_len=3, output_len=5)


def start(folder: Path, name: str, fails: str = "") -> DriverProcess:
    command = [sys.executable, str(FAKE), json.dumps({"fails": fails})]
    return DriverProcess(name, command, {}, folder / f"{name}.log")


def not_to_be_had() -> DriverProcess:
    raise InstallError("pip found no such package")


@pytest.fixture
def results() -> Results:
    return Results(machine={}, settings={}, workloads={"small": SMALL})


@pytest.fixture
def measure() -> Callable[[], Ceilings]:
    """Ceilings that count how often they were measured."""
    counted: Iterator[int] = iter(range(1, 100))
    return lambda: Ceilings(bandwidth=float(next(counted)), peak={"bf16": 1.0})


def rounds(
    results: Results, drivers: dict[str, DriverProcess], measure: Callable[[], Ceilings], count: int
) -> None:
    for number in range(count):
        run_round(
            number,
            SMALL,
            drivers,
            vocab_size=1000,
            costs={"a": [Cost(bytes=3, flops={})]},
            measure=measure,
            results=results,
        )


def test_rounds(tmp_path: Path, results: Results, measure: Callable[[], Ceilings]) -> None:
    starts = {name: partial(start, tmp_path, name) for name in ("a", "b")}
    with loaded(starts, results, 1000) as drivers:
        rounds(results, drivers, measure, 2)
    # Who begins changes; each has the ceilings measured right before and after it.
    assert [(r.round, r.contestant) for r in results.runs] == [
        *((0, "a"), (0, "b")),
        *((1, "b"), (1, "a")),
    ]
    seen = [(r.before.bandwidth, r.after.bandwidth) for r in results.runs]
    assert seen == [(1, 2), (2, 3), (4, 5), (5, 6)]
    assert [r.roofline_seconds for r in results.runs] == [3 / 1.5, None, None, 3 / 5.5]
    # All see the same prompts in a round, and others in the next.
    first = [p[-1] + 1 for p in SMALL.prompts(1000, "0")]
    assert [r.first_tokens for r in results.runs[:2]] == [first, first]
    assert results.runs[2].first_tokens != first
    assert results.versions == {"a": {"fake": "1"}, "b": {"fake": "1"}}
    assert not results.failed


def test_those_that_fail_are_named_and_left_out(
    tmp_path: Path, results: Results, measure: Callable[[], Ceilings]
) -> None:
    starts = {
        "absent": not_to_be_had,
        "unloaded": partial(start, tmp_path, "unloaded", "load"),
        "a": partial(start, tmp_path, "a"),
        "short": partial(start, tmp_path, "short", "tokens"),
        "picky": partial(start, tmp_path, "picky", "long prompts"),
    }
    with loaded(starts, results, 1000) as drivers:
        assert list(drivers) == ["a", "short", "picky"]
        rounds(results, drivers, measure, 2)
    assert [r.contestant for r in results.runs] == ["a", "a"]
    assert results.failed == {
        "absent": "pip found no such package",
        "unloaded": "unloaded: ValueError: no such weights",
        "short": "short gave [4] tokens instead of 5",
        "picky": "picky: RuntimeError: too short for me",
    }
