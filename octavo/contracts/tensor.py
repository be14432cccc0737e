"""Host tensors as they come from checkpoint files: bytes with a dtype that numpy may not know."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np


class DType(enum.Enum):
    """Element types. Block formats (GGUF) have `itemsize` 0: see `HostTensor.shape`."""

    F32 = "float32"
    BF16 = "bfloat16"
    F16 = "float16"
    F64 = "float64"
    I8 = "int8"
    U8 = "uint8"
    I32 = "int32"
    I64 = "int64"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q5_0 = "q5_0"
    Q5_1 = "q5_1"
    Q8_0 = "q8_0"
    Q4_K = "q4_k"
    Q5_K = "q5_k"
    Q6_K = "q6_k"

    @property
    def itemsize(self) -> int:
        return _ITEMSIZE.get(self.value, 0)

    @property
    def is_block_format(self) -> bool:
        return self.itemsize == 0


_ITEMSIZE = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A tensor in host memory, often a view of a memory-mapped file. Never written to.

    Attributes:
        data: for plain dtypes an array of `shape` (bfloat16 as uint16 bit patterns); for block
            formats the raw rows, uint8 [shape[0], bytes per row].
        dtype: what the bytes mean.
        shape: logical shape, outermost first ([out, in] for a linear weight).
    """

    data: np.ndarray
    dtype: DType
    shape: tuple[int, ...]

    @staticmethod
    def of(array: np.ndarray) -> HostTensor:
        """Wrap a plain numpy array (float32, float16, …)."""
        return HostTensor(array, DType(array.dtype.name), tuple(array.shape))

    def to_float32(self) -> np.ndarray:
        """The values as float32 [*shape]: exact for bfloat16, float16 and every block format."""
        if self.dtype is DType.F32:
            return self.data
        if self.dtype is DType.BF16:
            return bf16_to_float32(self.data)
        if self.dtype.is_block_format:
            import gguf

            kind = gguf.GGMLQuantizationType[self.dtype.name]
            return gguf.dequantize(self.data, kind).reshape(self.shape)
        return self.data.astype(np.float32)


def bf16_to_float32(bits: np.ndarray) -> np.ndarray:
    """uint16 bit patterns → float32, exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bf16(values: np.ndarray) -> np.ndarray:
    """float32 → uint16 bit patterns, round to nearest even; NaN stays NaN."""
    u = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16
    quiet_nan = (u >> 16) | 0x0040
    return np.where(np.isnan(values), quiet_nan, rounded).astype(np.uint16)
