"""Tensors on their way into a file: converted a few rows at a time, each to its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from octavo.contracts.tensor import DType, HostTensor, bf16_to_float32, float32_to_bf16
from octavo.models.progress import Progress

_CHUNK_ELEMENTS = 2 << 20
"""Elements converted at once: what writing needs beside the checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and how a tensor is stored.

    Attributes:
        file: index of its file.
        offset: of its first byte in the file.
        dtype: F32, BF16 or a block format.
        rounded_to: what its values are rounded to before; BF16 in a file of bfloat16 matrices,
            whose vectors are stored as float32.
        added: to the rounded values.
        num_heads: of q and k: the rows of so many heads are permuted; 0 leaves them.
    """

    file: int
    offset: int
    shape: tuple[int, ...]
    dtype: DType
    rounded_to: DType = DType.F32
    added: float = 0.0
    num_heads: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return stored_bytes(self.shape, self.dtype)


def stored_bytes(shape: tuple[int, ...], dtype: DType) -> int:
    """Bytes of a tensor; rows of a block format are whole blocks."""
    count = math.prod(shape)
    if not dtype.is_block_format:
        return count * dtype.itemsize
    block, block_bytes = block_size(dtype)
    return count // block * block_bytes


def block_size(dtype: DType) -> tuple[int, int]:
    """(elements, bytes) of a block."""
    import gguf

    elements, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype.name]]
    return elements, num_bytes


class TensorFiles:
    """Files that exist already, up to where their tensors begin; a context manager.

    Args:
        places: by name of the tensor.
        reorder: undoes what the checkpoint's reader did to the rows of a tensor with `num_heads`.
        progress: told how many bytes are written.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        places: Mapping[str, Place],
        *,
        reorder: Callable[[HostTensor, int], HostTensor] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._paths = list(paths)
        self._places = places
        self._reorder = reorder
        self._progress = progress
        self._total = sum(place.nbytes for place in places.values())
        self._written = 0
        self._files: list[BinaryIO] = []

    def put(self, name: str, tensor: HostTensor) -> None:
        """Write one tensor. Raises OSError."""
        place = self._places[name]
        if place.num_heads and self._reorder is not None:
            tensor = self._reorder(tensor, place.num_heads)
        file = self._files[place.file]
        file.seek(place.offset)
        for chunk in encoded(tensor, place):
            file.write(chunk.data)
            self._written += chunk.nbytes
            if self._progress is not None:
                self._progress(self._written, self._total)

    def __enter__(self) -> TensorFiles:
        self._files = [path.open("r+b") for path in self._paths]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for file in self._files:
            file.close()


def encoded(tensor: HostTensor, place: Place) -> Iterator[np.ndarray]:
    """The stored bytes, as contiguous arrays of a few rows each."""
    for values in _rows(tensor):
        if place.rounded_to is DType.BF16:
            values = bf16_to_float32(float32_to_bf16(values))
        if place.added:
            values = values + np.float32(place.added)
        yield np.ascontiguousarray(_encode(values, place.dtype))


def _rows(tensor: HostTensor) -> Iterator[np.ndarray]:
    """float32 [n, …] of a few rows at a time."""
    num_rows = tensor.shape[0]
    step = max(1, _CHUNK_ELEMENTS // max(1, math.prod(tensor.shape[1:])))
    for start in range(0, num_rows, step):
        data = np.ascontiguousarray(tensor.data[start : start + step])
        yield HostTensor(data, tensor.dtype, (len(data), *tensor.shape[1:])).to_float32()


def _encode(values: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype is DType.F32:
        return values.astype("<f4", copy=False)
    if dtype is DType.BF16:
        return float32_to_bf16(values).astype("<u2", copy=False)
    import gguf

    quantized: np.ndarray = gguf.quantize(values, gguf.GGMLQuantizationType[dtype.name])
    return quantized
