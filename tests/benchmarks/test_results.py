"""What is made of the runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.side_by_side.results import Results, Run, roofline_seconds, table
from benchmarks.side_by_side.workloads import WORKLOADS, Workload
from octavo.entrypoints.bench.costs import Cost, StepShape
from octavo.kernels.cpu_ceilings import Ceilings

SLOW = Ceilings(bandwidth=10.0, peak={"bf16": 100.0})
FAST = Ceilings(bandwidth=30.0, peak={"bf16": 300.0})
SMALL = Workload(name="small", num_prompts=2, input_len=3, output_len=4)
PAIRS = (("a", "b"), ("a", "absent"))


def run(number: int, contestant: str, seconds: float, tokens: list[int] | None = None) -> Run:
    return Run(
        workload="small",
        round=number,
        contestant=contestant,
        seconds=seconds,
        first_tokens=tokens or [1, 2],
        before=SLOW,
        after=FAST,
        roofline_seconds=1.0 if contestant == "a" else None,
    )


@pytest.fixture
def results() -> Results:
    """In the second round the machine was ten times as slow, for both."""
    return Results(
        machine={"cpu": "c"},
        settings={"model": "m"},
        workloads={"small": SMALL},
        versions={"a": {"a": "1"}},
        failed={"c": "not installed"},
        runs=[
            *(run(0, "a", 2.0), run(0, "b", 4.0, [1, 3])),
            *(run(1, "b", 50.0), run(1, "a", 20.0)),
            *(run(2, "a", 4.0), run(2, "b", 12.0)),
            run(3, "b", 1.0),  # a failed here: no pair
        ],
    )


def test_speed_is_the_median_over_rounds(results: Results) -> None:
    assert results.speed("small", "a") == 8 / 4.0
    assert results.speed("small", "absent") is None


def test_a_ratio_is_the_median_of_those_within_rounds(results: Results) -> None:
    """2, 2.5 and 3: not the ratio of the medians, which is 8 / 4."""
    assert results.ratio("small", "a", "b") == 2.5
    assert results.ratio("small", "b", "a") == pytest.approx(0.4)
    assert results.ratio("small", "a", "absent") is None


def test_fraction_of_the_roofline(results: Results) -> None:
    assert results.roofline_fraction("small", "a") == 0.25
    assert results.roofline_fraction("small", "b") is None


def test_agreement(results: Results) -> None:
    assert results.agreement("a", "b") == 5 / 6
    assert results.agreement("a", "absent") is None


def test_the_shortest_time_takes_the_mean_ceilings_step_by_step() -> None:
    steps = [Cost(bytes=40, flops={"bf16": 200}), Cost(bytes=20, flops={"bf16": 600})]
    assert roofline_seconds(steps, SLOW, FAST) == 40 / 20 + 600 / 200


def test_json_gives_the_results_back(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(results.to_json(PAIRS))
    assert Results.load(path) == results


def test_the_table(results: Results) -> None:
    assert table(results, PAIRS).splitlines() == [
        "| tokens/s (fraction of roofline) | a | b |",
        "| --- | --- | --- |",
        "| small | 2 (0.25) | 1 |",
        "",
        "| times as fast | a / b |",
        "| --- | --- |",
        "| small | 2.50 |",
    ]


def test_workloads() -> None:
    decode, prefill = WORKLOADS["decode n=8"], WORKLOADS["prefill 1024"]
    assert (decode.num_tokens, prefill.num_tokens) == (8 * 128, 1024)
    prompts = decode.prompts(1000, "0")
    assert [len(p) for p in prompts] == [16] * 8
    assert all(50 <= token < 950 for prompt in prompts for token in prompt)
    assert prompts == decode.prompts(1000, "0")
    assert prompts != decode.prompts(1000, "1")


def test_the_steps_of_a_workload() -> None:
    assert SMALL.steps() == [
        StepShape.prefill(2, 3),
        StepShape.decode(2, 4),
        StepShape.decode(2, 5),
        StepShape.decode(2, 6),
    ]
    assert WORKLOADS["prefill 1024"].steps() == [StepShape.prefill(1, 1024)]
