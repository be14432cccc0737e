"""Reports: both forms say the same."""

from __future__ import annotations

import json

from octavo.entrypoints.bench.report import Report, machine

REPORT = Report(
    benchmark="b",
    config={"model": "m"},
    results={
        "seconds": 1.23456,
        "tokens": 123456,
        "none": None,
        "rows": [{"x": 1, "y": 2.5}, {"x": None, "y": 3.5}],
    },
    machine={"cpu": "c", "num_cpus": 2},
)


def test_text() -> None:
    assert REPORT.to_text().splitlines() == [
        "b: m on c, 2 CPUs",
        "  seconds  1.235",
        "  tokens   123,456",
        "  none     None",
        "  rows",
        "    x    y",
        "    1  2.5",
        "       3.5",
    ]


def test_json() -> None:
    assert json.loads(REPORT.to_json()) == {
        "benchmark": "b",
        "config": {"model": "m"},
        "results": dict(REPORT.results),
        "machine": {"cpu": "c", "num_cpus": 2},
    }


def test_machine() -> None:
    found = machine()
    assert found["num_cpus"] >= 1
    assert all(found[k] for k in ("cpu", "system", "python", "octavo"))
