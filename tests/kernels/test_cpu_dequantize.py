"""The native dequantizer against the `gguf` package's: the same bits, for random blocks."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from octavo.contracts.tensor import DType
from octavo.errors import KernelError

_cpu = pytest.importorskip("octavo._cpu")

FORMATS = [d for d in DType if d.is_block_format]


@pytest.fixture(scope="module", params=[1, 3])
def device(request: pytest.FixtureRequest) -> object:
    return _cpu.Device(request.param, [], "")


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.value)
def test_equals_the_format(device: object, dtype: DType) -> None:
    kind = gguf.GGMLQuantizationType[dtype.name]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 256, (37, 5 * size), dtype=np.uint8)
    out = np.full((37, 5 * values), np.nan, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):  # random halves: infinities, NaN, subnormals
        expected = gguf.dequantize(rows, kind)
    _cpu.dequantize(device, dtype.value, rows, out)
    assert np.isfinite(expected).any()
    assert np.array_equal(out, expected, equal_nan=True)


def test_refuses_what_does_not_fit(device: object) -> None:
    rows, out = np.zeros((2, 20), np.uint8), np.zeros((2, 32), np.float32)
    _cpu.dequantize(device, "q4_1", rows, out)
    for name, r, o in [
        ("q9", rows, out),
        ("q4_1", rows[:, :19].copy(), out),
        ("q4_1", rows, np.zeros((2, 31), np.float32)),
        ("q4_1", rows, np.zeros((3, 32), np.float32)),
    ]:
        with pytest.raises(KernelError):
            _cpu.dequantize(device, name, r, o)
