"""The measured ceilings of the machine."""

from __future__ import annotations

import pytest

from octavo import _cpu
from octavo.errors import KernelError

MAX_CLOCK = 6.5e9  # Hz; no core runs faster
MACS_PER_CYCLE = {"f32": 2 * 16, "bf16": 2 * 32, "int8": 2 * 64}  # two units of 512 bits


@pytest.mark.parametrize("kind", ["f32", "bf16", "int8"])
def test_a_peak_is_within_what_cores_can_do(kind: str) -> None:
    """More would mean that the compiler merged chains: the work would be counted, and not done."""
    peak = _cpu.measure_peak(kind, 1, seconds=0.05)
    assert 1e6 < peak <= 2 * MACS_PER_CYCLE[kind] * MAX_CLOCK


def test_bandwidth_counts_every_byte_once() -> None:
    """A few megabytes lie in a cache, so only the order of magnitude is known."""
    assert 1e6 < _cpu.measure_bandwidth(2, bytes=4 << 20, seconds=0.05) < 4e12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _cpu.measure_peak("int4", 1), "must be f32, bf16 or int8"),
        (lambda: _cpu.measure_peak("f32", 0), "num_threads=0"),
        (lambda: _cpu.measure_peak("f32", 1, seconds=0), "at most 60 s"),
        (lambda: _cpu.measure_bandwidth(1, bytes=10), "2\\^20"),
        (lambda: _cpu.measure_bandwidth(1, seconds=float("nan")), "at most 60 s"),
    ],
)
def test_what_cannot_be_measured_is_refused(call, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        call()
