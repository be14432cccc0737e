"""The cost of a step program beside its kernels. No verdict by the clock: that it counts ops."""

from __future__ import annotations

from octavo.contracts.tensor import DType
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.cpu_overhead import measure_overhead
from tests.kernels.backends import make_backend


def test_more_ops_cost_more() -> None:
    backend = make_backend("cpu", DType.F32, 1)
    assert isinstance(backend, CpuBackend)
    overhead = measure_overhead(backend, num_ops=2000, num_runs=5)
    assert overhead.run_us > 0
    assert 0 < overhead.op_us < overhead.run_us
