"""The chart says what the results say."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

from benchmarks.side_by_side.chart import svg
from benchmarks.side_by_side.results import Results, Run
from benchmarks.side_by_side.workloads import WORKLOADS
from octavo.kernels.cpu_ceilings import Ceilings

SVG = "{http://www.w3.org/2000/svg}"
CEILINGS = Ceilings(bandwidth=1.0, peak={})


def results() -> Results:
    """Octavo twice as fast as a peer with a name that needs escaping."""
    runs = [
        Run(
            workload=workload,
            round=0,
            contestant=name,
            seconds=seconds,
            first_tokens=[1],
            before=CEILINGS,
            after=CEILINGS,
            roofline_seconds=roofline,
        )
        for workload in ("decode n=8", "prefill 1024")
        for name, seconds, roofline in (("Octavo bf16", 1.0, 0.9), ("a < b & c", 2.0, None))
    ]
    settings = {"model": "m", "num_threads": 2}
    return Results(machine={"cpu": "c"}, settings=settings, workloads=WORKLOADS, runs=runs)


def test_the_chart() -> None:
    root = ElementTree.fromstring(svg(results()))
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert texts == [
        "decode n=8",
        *("Octavo bf16", "1,024 tokens/s · 90% of roofline", "a < b & c", "512 tokens/s"),
        "prefill 1024",
        *("Octavo bf16", "1,024 tokens/s · 90% of roofline", "a < b & c", "512 tokens/s"),
    ]
    bars = list(root.iter(f"{SVG}rect"))
    assert [bar.get("class") for bar in bars] == ["ours", "theirs"] * 2
    ours, theirs = (float(bar.get("width", 0)) for bar in bars[:2])
    assert ours == 2 * theirs


def test_nothing_is_outside_and_nothing_overlaps() -> None:
    root = ElementTree.fromstring(svg(results()))
    _, _, width, height = map(float, root.get("viewBox", "").split())
    tops = [float(bar.get("y", 0)) for bar in root.iter(f"{SVG}rect")]
    heights = {float(bar.get("height", 0)) for bar in root.iter(f"{SVG}rect")}
    assert all(b - a >= max(heights) for a, b in pairwise(tops))
    assert tops[-1] + max(heights) <= height
    assert all(0 <= float(t.get("x", -1)) < width for t in root.iter(f"{SVG}text"))


def test_both_colour_schemes() -> None:
    assert "prefers-color-scheme: dark" in svg(results())
