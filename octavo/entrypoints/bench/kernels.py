"""Ops and whole forwards against their roofline: what is counted from shapes over what is measured.

The machine's ceilings are measured before and after each step, because they drift on shared
machines; a fraction is of their mean. Ops are timed inside the step that they are part of, so their
operands lie where they lie in a real step: weights in memory, activations in a cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from octavo.config.engine import EngineConfig
from octavo.entrypoints.bench.costs import NOTHING, Cost, StepShape, total
from octavo.entrypoints.bench.report import Report, machine
from octavo.entrypoints.bench.step_lab import StepLab, step_lab
from octavo.errors import ConfigError
from octavo.kernels.cpu_ceilings import Ceilings, measure_ceilings
from octavo.kernels.cpu_overhead import measure_overhead

FORMATS: Mapping[str, Mapping[str, Any]] = {
    "auto": {},
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "gguf": {"quantization": "gguf"},
}
"""By name of a weight format: the engine's options that choose it. "auto" is what the engine's
other options say, as for any command."""


@dataclass(frozen=True, kw_only=True)
class KernelOptions:
    """What is measured.

    Attributes:
        formats: of the weights, out of `FORMATS`.
        batch_sizes: requests of the decode steps.
        context_len: tokens in the cache of each of them, the new one included.
        prefill_len: tokens of the one prompt of the prefill step; 0: no such step.
        repeats: of each step; times are medians.
    """

    formats: tuple[str, ...] = ("auto",)
    batch_sizes: tuple[int, ...] = (1, 8, 32, 64)
    context_len: int = 100
    prefill_len: int = 1024
    repeats: int = 10

    def shapes(self) -> dict[str, StepShape]:
        """Name → step."""
        found = {f"decode n={n}": StepShape.decode(n, self.context_len) for n in self.batch_sizes}
        if self.prefill_len:
            found[f"prefill {self.prefill_len}"] = StepShape.prefill(1, self.prefill_len)
        return found


def run_steps(config: EngineConfig, options: KernelOptions) -> Report:
    """Whole forwards: a row per format and step. Raises as `step_lab`."""
    rows: list[dict[str, Any]] = []
    measured: list[dict[str, Any]] = []
    for case in _cases(config, options):
        with case.between_ceilings(measured) as ceilings:
            seconds = case.lab.seconds(case.shape, options.repeats)
        cost = total(case.lab.counted, case.shape)
        rows.append(case.head() | _row(cost, seconds, ceilings.mean()))
    return _report("step", config, options, {"steps": rows, "ceilings": measured})


def run_kernels(config: EngineConfig, options: KernelOptions) -> Report:
    """Ops: a row per format, step and kind of op, times and costs added up over the layers; what
    the calling thread waits for others; and what a program costs that computes nothing. Raises as
    `step_lab`."""
    rows: list[dict[str, Any]] = []
    empty: list[dict[str, Any]] = []
    measured: list[dict[str, Any]] = []
    for case in _cases(config, options):
        with case.between_ceilings(measured) as ceilings:
            seconds, waited = case.lab.op_seconds(case.shape, options.repeats)
        for (name, detail), spent in _by_kind(case, seconds).items():
            what = {"op": name, "of": detail, "count": spent.count}
            rows.append(case.head() | what | _row(spent.cost, spent.seconds, ceilings.mean()))
        waiting = {"op": "wait", "of": "", "count": 1}
        rows.append(case.head() | waiting | _row(NOTHING, waited, ceilings.mean()))
        empty.append(case.head() | asdict(measure_overhead(case.lab.backend)))
    results = {"ops": rows, "program overhead": empty, "ceilings": measured}
    return _report("kernels", config, options, results)


@dataclass(slots=True)
class _Spent:
    """What the ops of one kind took together."""

    count: int = 0
    seconds: float = 0.0
    cost: Cost = NOTHING


def _by_kind(case: _Case, seconds: Sequence[float]) -> dict[tuple[str, str], _Spent]:
    """By name and detail; without what the program does not run as an op."""
    found: dict[tuple[str, str], _Spent] = {}
    for op, time in zip(case.lab.counted, seconds):
        if time > 0:
            spent = found.setdefault((op.name, op.detail), _Spent())
            spent.count += 1
            spent.seconds += time
            spent.cost += op.cost(case.shape)
    return found


class _Bracket:
    """The ceilings before and after something."""

    def __init__(self, before: Ceilings) -> None:
        self.before = self.after = before

    def mean(self) -> Ceilings:
        return Ceilings.mean(self.before, self.after)


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One format and step."""

    format: str
    step: str
    shape: StepShape
    lab: StepLab

    def head(self) -> dict[str, Any]:
        return {"format": self.format, "step": self.step}

    @contextmanager
    def between_ceilings(self, measured: list[dict[str, Any]]) -> Iterator[_Bracket]:
        """Measure the ceilings before and after; add them to a table."""
        num_threads = self.lab.backend.num_threads
        bracket = _Bracket(measure_ceilings(num_threads))
        yield bracket
        bracket.after = measure_ceilings(num_threads)
        for when, ceilings in (("before", bracket.before), ("after", bracket.after)):
            peaks = {f"{kind}_gop_per_s": peak / 1e9 for kind, peak in ceilings.peak.items()}
            row = {"when": when, "read_gb_per_s": ceilings.bandwidth / 1e9}
            measured.append(self.head() | row | peaks)


def _cases(config: EngineConfig, options: KernelOptions) -> Iterator[_Case]:
    shapes = options.shapes()
    for name in options.formats:
        with step_lab(in_format(config, name), list(shapes.values())) as lab:
            for step, shape in shapes.items():
                yield _Case(format=name, step=step, shape=shape, lab=lab)


def in_format(config: EngineConfig, name: str) -> EngineConfig:
    """The configuration with the weights in one of `FORMATS`. Raises ConfigError."""
    if name not in FORMATS:
        raise ConfigError(f"format={name!r} must be one of {', '.join(FORMATS)}")
    return replace(config, model=replace(config.model, **FORMATS[name])).checked()


def _row(cost: Cost, seconds: float, ceilings: Ceilings) -> dict[str, Any]:
    """Times in ms, rates in GB/s and Gop/s. `fraction` is of the roofline. An op that moves nothing
    but activations has none: a cache may give them faster than memory could."""
    roofline = cost.roofline_seconds(ceilings)
    moved = cost.bytes if roofline else cost.activation_bytes
    is_memory = cost.memory_seconds(ceilings) >= cost.compute_seconds(ceilings)
    return {
        "ms": 1e3 * seconds,
        "mb": moved / 1e6,
        "gop": cost.total_flops / 1e9,
        "gb_per_s": moved / seconds / 1e9 if seconds else 0.0,
        "gop_per_s": cost.total_flops / seconds / 1e9 if seconds else 0.0,
        "bound": "" if not roofline else "memory" if is_memory else "compute",
        "fraction": roofline / seconds if roofline else None,
    }


def _report(
    name: str, config: EngineConfig, options: KernelOptions, results: Mapping[str, Any]
) -> Report:
    return Report(
        benchmark=name,
        config={"model": config.model.model, **asdict(options)},
        results=dict(results),
        machine=machine(),
    )
