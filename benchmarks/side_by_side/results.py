"""What was measured, and what is made of it: medians over rounds, ratios within rounds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.side_by_side.workloads import Workload
from octavo.entrypoints.bench.costs import Cost
from octavo.kernels.cpu_ceilings import Ceilings


@dataclass(frozen=True, kw_only=True)
class Run:
    """One engine doing one workload once.

    Attributes:
        round: runs of one round see the same prompts, one after the other.
        seconds: for all of it.
        first_tokens: the first token of each prompt.
        before, after: the machine's ceilings.
        roofline_seconds: the shortest time by these ceilings; None where it was not counted.
    """

    workload: str
    round: int
    contestant: str
    seconds: float
    first_tokens: list[int]
    before: Ceilings
    after: Ceilings
    roofline_seconds: float | None


def roofline_seconds(steps: Sequence[Cost], before: Ceilings, after: Ceilings) -> float:
    """The shortest time of a workload, its steps one after the other, by the mean of the ceilings
    measured before and after it."""
    ceilings = Ceilings.mean(before, after)
    return sum(step.roofline_seconds(ceilings) for step in steps)


@dataclass(kw_only=True)
class Results:
    """All runs of a session.

    Attributes:
        machine: where it ran.
        settings: model, threads, rounds.
        versions: of each contestant.
        failed: contestant → why it is not in the table.
    """

    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    workloads: Mapping[str, Workload]
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    def contestants(self) -> list[str]:
        """Those that ran, in order of their first run."""
        return list(dict.fromkeys(run.contestant for run in self.runs))

    def speed(self, workload: str, contestant: str) -> float | None:
        """Median tokens per second."""
        tokens = self.workloads[workload].num_tokens
        return self._median(workload, contestant, lambda run: tokens / run.seconds)

    def roofline_fraction(self, workload: str, contestant: str) -> float | None:
        """Median of the shortest possible time over the time it took."""
        return self._median(
            workload,
            contestant,
            lambda run: (
                None if run.roofline_seconds is None else run.roofline_seconds / run.seconds
            ),
        )

    def ratio(self, workload: str, contestant: str, other: str) -> float | None:
        """How many times as fast as another: the median of the ratios within each round."""
        own, theirs = self._rounds(workload, contestant), self._rounds(workload, other)
        ratios = [theirs[r].seconds / own[r].seconds for r in own if r in theirs]
        return statistics.median(ratios) if ratios else None

    def agreement(self, contestant: str, other: str) -> float | None:
        """Share of the prompts for which both began with the same token."""
        same = [
            a == b
            for workload in self.workloads
            for number, run in self._rounds(workload, contestant).items()
            if (twin := self._rounds(workload, other).get(number)) is not None
            for a, b in zip(run.first_tokens, twin.first_tokens)
        ]
        return sum(same) / len(same) if same else None

    def to_json(self, pairs: Sequence[tuple[str, str]]) -> str:
        """Everything, and the summary."""
        return json.dumps(
            {
                "benchmark": "peers",
                "machine": dict(self.machine),
                "settings": dict(self.settings),
                "versions": self.versions,
                "failed": self.failed,
                "workloads": {name: asdict(w) for name, w in self.workloads.items()},
                "summary": self.summary(pairs),
                "runs": [asdict(run) for run in self.runs],
            },
            indent=1,
        )

    @classmethod
    def load(cls, path: Path) -> Results:
        """What `to_json` wrote."""
        data = json.loads(path.read_text())
        runs = [
            Run(**{**run, "before": Ceilings(**run["before"]), "after": Ceilings(**run["after"])})
            for run in data["runs"]
        ]
        return cls(
            machine=data["machine"],
            settings=data["settings"],
            workloads={name: Workload(**w) for name, w in data["workloads"].items()},
            versions=data["versions"],
            failed=data["failed"],
            runs=runs,
        )

    def summary(self, pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """A row per workload: tokens per second, fractions of the roofline, ratios."""
        return [
            {
                "workload": w,
                "rounds": len({run.round for run in self.runs if run.workload == w}),
                "tokens_per_second": self._each(partial(self.speed, w)),
                "roofline_fraction": self._each(partial(self.roofline_fraction, w)),
                "ratio": {
                    f"{a} / {b}": ratio
                    for a, b in pairs
                    if (ratio := self.ratio(w, a, b)) is not None
                },
            }
            for w in self.workloads
            if any(run.workload == w for run in self.runs)
        ]

    def _each(self, of: Callable[[str], float | None]) -> dict[str, float]:
        return {c: value for c in self.contestants() if (value := of(c)) is not None}

    def _rounds(self, workload: str, contestant: str) -> dict[int, Run]:
        return {
            run.round: run
            for run in self.runs
            if (run.workload, run.contestant) == (workload, contestant)
        }

    def _median(
        self, workload: str, contestant: str, of: Callable[[Run], float | None]
    ) -> float | None:
        found = [v for r in self._rounds(workload, contestant).values() if (v := of(r)) is not None]
        return statistics.median(found) if found else None


def table(results: Results, pairs: Sequence[tuple[str, str]]) -> str:
    """The summary in Markdown: speeds, then ratios."""
    rows = results.summary(pairs)
    names = results.contestants()
    head = ["tokens/s (fraction of roofline)", *names]
    lines = [_row(head), _row(["---"] * len(head))]
    for row in rows:
        cells = [row["workload"]]
        for name in names:
            speed = row["tokens_per_second"].get(name)
            fraction = row["roofline_fraction"].get(name)
            text = "" if speed is None else f"{speed:,.0f}"
            cells.append(text if fraction is None else f"{text} ({fraction:.2f})")
        lines.append(_row(cells))
    compared = [f"{a} / {b}" for a, b in pairs if any(f"{a} / {b}" in r["ratio"] for r in rows)]
    if compared:
        head = ["times as fast", *compared]
        lines += ["", _row(head), _row(["---"] * len(head))]
        lines += [
            _row(
                [
                    r["workload"],
                    *(f"{r['ratio'][c]:.2f}" if c in r["ratio"] else "" for c in compared),
                ]
            )
            for r in rows
        ]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
