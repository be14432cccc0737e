"""What the machine can do at most, measured: the two ceilings of a roofline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from octavo import _cpu

ProductKind = Literal["f32", "bf16", "int8"]


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """Measured at one moment: virtual machines drift.

    Attributes:
        bandwidth: bytes per second read from memory, one sequential stream per thread.
        peak: operations per second by kind of product; a multiply-add is two.
    """

    bandwidth: float
    peak: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Plain data; `Ceilings(**data)` gives it back."""
        return asdict(self)

    @classmethod
    def mean(cls, first: Ceilings, second: Ceilings) -> Ceilings:
        """Of what was measured before and after."""
        return cls(
            bandwidth=(first.bandwidth + second.bandwidth) / 2,
            peak={kind: (peak + second.peak[kind]) / 2 for kind, peak in first.peak.items()},
        )


def measure_ceilings(num_threads: int, *, seconds: float = 1.0) -> Ceilings:
    """Measure for about `seconds`: half of them reads 512 MB over and over, the rest computes in
    registers with the best instruction there is for each kind of product.

    Raises:
        KernelError: num_threads is not in the range of the native thread pool.
        MemoryPlanError: there is no memory for the bytes to read.
    """
    kinds = get_args(ProductKind)
    bandwidth = _cpu.measure_bandwidth(num_threads, seconds=seconds / 2)
    each = seconds / 2 / len(kinds)
    peak = {kind: _cpu.measure_peak(kind, num_threads, seconds=each) for kind in kinds}
    return Ceilings(bandwidth=bandwidth, peak=peak)
