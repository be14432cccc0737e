"""Weights on their way into the CPU back end: the same however they come, and in little memory."""

from __future__ import annotations

import contextlib
import tracemalloc
import weakref

import numpy as np
import pytest

from octavo.contracts.tensor import DType, HostTensor
from octavo.errors import KernelError
from octavo.kernels import cpu_packer
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.ops import Activation, Ops
from tests.kernels.cpu_steps import (
    gathered,
    randn,
    run_rows,
    tensor,
)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=str)
@pytest.mark.parametrize("gated", [False, True])
def test_weights_are_packed_alike_in_any_chunks(
    dtype: DType, gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = CpuBackend(dtype, 2)
    parts = [tensor(1, 70, 33), tensor(2, 70, 33)]
    ones = backend.pack_vector(HostTensor.of(np.ones(33, np.float32)))

    def result() -> np.ndarray:
        weight = backend.pack_linear(parts, gated=gated)

        def forward(ops: Ops) -> None:
            act = ops.rms_norm(ops.input("x", 33), ones, eps=1e-6)
            gate = ops.gated_linear(act, weight, Activation.SILU) if gated else None
            ops.output("out", gate or ops.linear(act, weight))

        return run_rows(backend, forward, {"x": randn(3, 5, 33)})["out"]

    whole = result()
    monkeypatch.setattr(cpu_packer, "_CHUNK_ELEMENTS", 1)  # 32 rows at a time
    assert np.array_equal(result(), whole)
    backend.close()


def test_packing_needs_little_memory_beside_the_result(
    backend: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = HostTensor.of(np.ones((4096, 256), np.float16))
    monkeypatch.setattr(cpu_packer, "_CHUNK_ELEMENTS", 64 * 256)
    tracemalloc.start()
    weight = backend.pack_linear([part])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert weight.nbytes == 4096 * 256 * 4
    assert peak < weight.nbytes / 20


@pytest.mark.parametrize("batch_bytes", [1, 1 << 30])
def test_weights_that_are_packed_in_the_background_are_complete_in_the_end(
    backend: CpuBackend, batch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [tensor(seed, 70, 33) for seed in range(4)]
    expected = [gathered(backend, backend.pack_linear([part])) for part in parts]
    monkeypatch.setattr(cpu_packer, "_BATCH_BYTES", batch_bytes)
    with backend.loading():
        weights = [backend.pack_linear([part]) for part in parts]
    for weight, rows in zip(weights, expected, strict=True):
        assert np.array_equal(gathered(backend, weight), rows)


def test_a_load_that_fails_leaves_nothing_to_the_next_one(backend: CpuBackend) -> None:
    def load(rows: HostTensor) -> weakref.ref[np.ndarray]:
        with contextlib.suppress(ZeroDivisionError), backend.loading():
            backend.pack_linear([rows])
            raise ZeroDivisionError
        return weakref.ref(rows.data)

    source = load(tensor(1, 40, 33))
    assert source() is None
    part = tensor(2, 40, 33)
    assert np.array_equal(gathered(backend, backend.pack_linear([part])), part.data)


def test_misshapen_weights_are_refused(backend: CpuBackend) -> None:
    a, b = tensor(1, 4, 8), tensor(2, 6, 8)
    for parts, options in (
        ([], {}),
        ([a, tensor(1, 4, 9)], {}),
        ([tensor(1, 4)], {}),
        ([a, b], {"gated": True}),
        ([a], {"gated": True}),
        ([a], {"bias": [tensor(1, 5)]}),
        ([a], {"bias": [tensor(1, 3)]}),
    ):
        with pytest.raises(KernelError):
            backend.pack_linear(parts, **options)
    with pytest.raises(KernelError):
        backend.pack_embedding(tensor(1, 4))
    with pytest.raises(KernelError):
        backend.pack_vector(a)
    with pytest.raises(KernelError):
        backend.pack_rope(randn(1, 4, 2), randn(1, 4, 3), interleaved=False)
