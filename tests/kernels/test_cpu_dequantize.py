"""Blocks that are dequantized while they are packed, against the `gguf` package: the same bits, for
random blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import gguf
import numpy as np
import pytest

from octavo.contracts.tensor import DType, HostTensor
from octavo.errors import KernelError
from tests.kernels.cpu_steps import gathered

cpu = pytest.importorskip("octavo.kernels.cpu")

FORMATS = [d for d in DType if d.is_block_format]
ROWS = 37

Pack = Callable[["cpu.CpuBackend", HostTensor], "cpu.Weight"]


@pytest.fixture(scope="module", params=[1, 3])
def backend(request: pytest.FixtureRequest) -> Iterator[cpu.CpuBackend]:
    backend = cpu.CpuBackend(DType.F32, request.param)
    yield backend
    backend.close()


@pytest.mark.parametrize(
    "pack",
    [lambda b, t: b.pack_embedding(t), lambda b, t: b.pack_linear([t])],
    ids=["table", "linear"],
)
@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.value)
def test_equals_the_format(backend: cpu.CpuBackend, dtype: DType, pack: Pack) -> None:
    kind = gguf.GGMLQuantizationType[dtype.name]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 256, (ROWS, 5 * size), dtype=np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):  # random halves: infinities, NaN, subnormals
        expected = gguf.dequantize(rows, kind)
    out = gathered(backend, pack(backend, HostTensor(rows, dtype, (ROWS, 5 * values))))
    assert np.isfinite(expected).any()
    assert np.array_equal(out, expected, equal_nan=True)


def test_refuses_what_does_not_fit(backend: cpu.CpuBackend) -> None:
    device = backend._device
    rows = np.zeros((2, 20), np.uint8)
    for packed in (
        cpu._cpu.PackedTable(device, "float32", 2, 32),
        cpu._cpu.PackedLinear(device, "float32", 2, 32, False, False),
    ):
        tasks = cpu._cpu.PackTasks()
        packed.put_blocks(tasks, 0, "q4_1", rows)
        for name, r, first in [
            ("q9", rows, 0),
            ("q4_1", rows[:, :19].copy(), 0),
            ("q4_1", np.zeros((2, 40), np.uint8), 0),
            ("q4_1", np.zeros((3, 20), np.uint8), 0),
            ("q4_1", rows, 1),
        ]:
            with pytest.raises(KernelError):
                packed.put_blocks(tasks, first, name, r)
        packed.unload()
        with pytest.raises(KernelError, match="unloaded"):
            packed.put_blocks(tasks, 0, "q4_1", rows)
