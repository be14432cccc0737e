"""What a benchmark found, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from typing import Any

from octavo.version import __version__


@dataclass(frozen=True, kw_only=True)
class Report:
    """One benchmark run.

    Attributes:
        benchmark: its name.
        config: what was asked for.
        results: name → number, or a table as a list of such dicts.
        machine: where it ran.
    """

    benchmark: str
    config: dict[str, Any]
    results: dict[str, Any]
    machine: dict[str, Any]

    def to_json(self) -> str:
        """Indented JSON."""
        return json.dumps(asdict(self), indent=2)

    def to_text(self) -> str:
        """Aligned lines."""
        head = f"{self.benchmark}: {self.config.get('model', '')} on {self.machine['cpu']}"
        lines = [f"{head}, {self.machine['num_cpus']} CPUs"]
        scalars = {k: v for k, v in self.results.items() if not isinstance(v, list)}
        width = max(map(len, scalars), default=0)
        lines += [f"  {k:<{width}}  {_number(v)}" for k, v in scalars.items()]
        for name, rows in self.results.items():
            if isinstance(rows, list):
                lines += [f"  {name}", *_table(rows)]
        return "\n".join(lines)


def machine() -> dict[str, Any]:
    """The machine, as far as it matters to a number."""
    return {
        "cpu": _cpu_name(),
        "num_cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "octavo": __version__,
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _table(rows: list[dict[str, Any]]) -> list[str]:
    cells = [list(rows[0])] + [
        ["" if v is None else _number(v) for v in row.values()] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return ["    " + "  ".join(c.rjust(w) for c, w in zip(line, widths)) for line in cells]


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
