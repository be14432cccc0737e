"""The GGUF container: metadata and tensors of a memory-mapped file.

Format: ggml-org/ggml, docs/gguf.md. Block types without a `DType`, and dequantization, come from
the `gguf` package, which takes 30 ms to import. The header is read here, because `gguf.GGUFReader`
takes 2.4 s for the header of SmolLM2-135M (this: 0.1 s, on 2 cores of a Xeon) and does not end on a
header with absurd counts.
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.contracts.tensor import DType, HostTensor
from octavo.errors import UnsupportedModelError, WeightsError
from octavo.models.mapping import PageReleaser, map_file

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    24: ("I8", 1, 1),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    30: ("BF16", 1, 2),
}
"""ggml's number of a type → its name, values and bytes of a block. Those with a `DType`."""
_STORED_AS = {DType.BF16: np.dtype("<u2")}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor as the header describes it.

    Attributes:
        shape: logical shape, outermost first.
        type_name: ggml's name of its type ("F32", "Q4_1", "IQ4_XS" …).
        offset: of its first byte in the file.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    nbytes: int


class GGUFFile:
    """An open GGUF file.

    Attributes:
        metadata: key → int, float, bool, str, list of str, or numpy array of numbers.
        tensors: name → what the header says, in the file's order.

    Raises:
        WeightsError: not a GGUF file, truncated, or broken otherwise.
        UnsupportedModelError: a version or tensor type that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = map_file(path)
        try:
            reader = _Reader(self._map)
            num_tensors, num_keys = reader.preamble()
            self.metadata = reader.metadata(num_keys)
            self.tensors = _tensors(reader, num_tensors, self.metadata)
            for type_name in {t.type_name for t in self.tensors.values()}:
                _check_type(type_name)
        except _Unsupported as error:
            raise UnsupportedModelError(f"{path}: {error}") from None
        except _Broken as error:
            raise WeightsError(f"{path}: {error}") from None

    def page_releaser(self) -> PageReleaser:
        """Of this file's map, for a pass over its tensors."""
        return PageReleaser(self._map)

    def tensor(self, name: str) -> HostTensor:
        """One tensor. Types that `DType` has, and that have rows, stay as they are stored, without
        a copy; others are dequantized to float32 now."""
        info = self.tensors[name]
        dtype = DType.__members__.get(info.type_name)
        if dtype is not None and not dtype.is_block_format:
            stored = _STORED_AS.get(dtype) or np.dtype(dtype.value)
            data = np.frombuffer(self._map, stored, math.prod(info.shape), info.offset)
            return HostTensor(data.reshape(info.shape), dtype, info.shape)
        raw = np.frombuffer(self._map, np.uint8, info.nbytes, info.offset)
        rows = raw.reshape(*info.shape[:-1], -1)
        if dtype is not None and len(info.shape) > 1:
            return HostTensor(rows, dtype, info.shape)
        import gguf

        values = gguf.dequantize(rows, gguf.GGMLQuantizationType[info.type_name])
        return HostTensor(values.reshape(info.shape), DType.F32, info.shape)

    def main_dtype(self) -> DType:
        """The type that most elements are stored in; float32 for those that get dequantized."""
        num_elements: dict[str, int] = {}
        for t in self.tensors.values():
            num_elements[t.type_name] = num_elements.get(t.type_name, 0) + math.prod(t.shape)
        most = max(num_elements, key=num_elements.__getitem__, default="F32")
        return DType.__members__.get(most, DType.F32)


class _Broken(Exception):
    """The bytes are not what the format says."""


class _Unsupported(Exception):
    """Well-formed, but nothing that can be read here."""


class _Reader:
    """Reads forward through the header; every count is checked against the bytes that are left."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.size = len(data)
        self.pos = 0

    def _need(self, count: int, itemsize: int) -> None:
        if count * itemsize > self.size - self.pos:
            raise _Broken(
                f"truncated or corrupt: at byte {self.pos} the header announces {count} items of "
                f"{itemsize} bytes or more, but {self.size - self.pos} bytes are left"
            )

    def integer(self, fmt: str) -> int:
        size = struct.calcsize(fmt)
        self._need(1, size)
        (value,) = struct.unpack_from(fmt, self.data, self.pos)
        self.pos += size
        return int(value)

    def string(self) -> str:
        (value,) = self.strings(1)
        return value

    def strings(self, count: int) -> list[str]:
        """`count` strings, each a length and its bytes. A vocabulary has 10⁵ of them: the loop is
        kept free of calls, and slices past the end give short bytes, which are noticed."""
        self._need(count, 8)
        data, pos, from_bytes = self.data, self.pos, int.from_bytes
        result = []
        for _ in range(count):
            start = pos + 8
            pos = start + from_bytes(data[pos:start], "little")
            result.append(data[start:pos])
            if pos > self.size:
                self.pos = start
                self._need(pos - start, 1)
        self.pos = pos
        try:
            return [raw.decode("utf-8") for raw in result]
        except UnicodeDecodeError as error:
            raise _Broken(f"a string before byte {pos} is not UTF-8: {error}") from None

    def preamble(self) -> tuple[int, int]:
        """Checks magic and version. Returns the numbers of tensors and of metadata keys."""
        if self.data[:4] != _MAGIC:
            raise _Broken(f"not a GGUF file: it begins with {self.data[:4]!r}, not {_MAGIC!r}")
        self.pos = 4
        version = self.integer("<I")
        if version & 0xFFFF == 0:
            raise _Unsupported("big-endian GGUF files are not supported")
        if version not in _VERSIONS:
            raise _Unsupported(f"GGUF version {version} is not supported; supported: {_VERSIONS}")
        num_tensors, num_keys = self.integer("<Q"), self.integer("<Q")
        self._need(num_tensors, 8 + 4 + 8 + 4 + 8)  # name, dims, one dim, type, offset
        self._need(num_keys, 8 + 4 + 1)  # key, type, value
        return num_tensors, num_keys

    def metadata(self, count: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for _ in range(count):
            key = self.string()
            if key in result:
                raise _Broken(f"metadata key {key!r} appears twice")
            result[key] = self._value(key, self.integer("<I"))
        return result

    def _value(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self._numbers(key, kind, 1)[0].item()
        kind, count = self.integer("<I"), self.integer("<Q")
        if kind == _STRING:
            return self.strings(count)
        return self._numbers(key, kind, count)

    def _numbers(self, key: str, kind: int, count: int) -> np.ndarray:
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise _Broken(f"metadata key {key!r} has the unknown or nested type {kind}")
        self._need(count, dtype.itemsize)
        values = np.frombuffer(self.data, dtype, count, self.pos).copy()
        self.pos += values.nbytes
        return values


def _tensors(reader: _Reader, count: int, metadata: dict[str, Any]) -> dict[str, GGUFTensor]:
    headers = [_tensor_header(reader) for _ in range(count)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
        raise _Broken(f"general.alignment={alignment!r} must be a power of two from 8")
    start = -(-reader.pos // alignment) * alignment
    result: dict[str, GGUFTensor] = {}
    for name, shape, type_id, offset in headers:
        if name in result:
            raise _Broken(f"tensor {name!r} appears twice")
        type_name, nbytes = _type_and_size(name, shape, type_id)
        if offset % alignment:
            raise _Broken(f"tensor {name!r} is not aligned to {alignment} bytes")
        if start + offset + nbytes > reader.size:
            raise _Broken(
                f"truncated: tensor {name!r} ends at byte {start + offset + nbytes}, the file at "
                f"{reader.size}; fetch the file again"
            )
        result[name] = GGUFTensor(name, shape, type_name, start + offset, nbytes)
    _check_overlaps(result)
    return result


def _check_overlaps(tensors: dict[str, GGUFTensor]) -> None:
    ordered = sorted(tensors.values(), key=lambda t: t.offset)
    for before, after in itertools.pairwise(ordered):
        if before.offset + before.nbytes > after.offset:
            raise _Broken(f"tensors {before.name!r} and {after.name!r} overlap")


def _tensor_header(reader: _Reader) -> tuple[str, tuple[int, ...], int, int]:
    name = reader.string()
    num_dims = reader.integer("<I")
    if not 1 <= num_dims <= _MAX_DIMS:
        raise _Broken(f"tensor {name!r} has {num_dims} dimensions; 1…{_MAX_DIMS} are possible")
    shape = tuple(reader.integer("<Q") for _ in range(num_dims))[::-1]
    if not all(shape):
        raise _Broken(f"tensor {name!r} has the empty shape {list(shape)}")
    return name, shape, reader.integer("<I"), reader.integer("<Q")


def _type_and_size(name: str, shape: tuple[int, ...], type_id: int) -> tuple[str, int]:
    """ggml's name of a type, and the bytes that a tensor of it takes."""
    type_name, block, block_bytes = _TYPES.get(type_id) or _other_type(name, type_id)
    if shape[-1] % block:
        raise _Broken(f"tensor {name!r}: rows of {shape[-1]} are no whole blocks of {type_name}")
    return type_name, math.prod(shape) // block * block_bytes


def _other_type(name: str, type_id: int) -> tuple[str, int, int]:
    """As in `_TYPES`, of a tensor whose type is not there."""
    import gguf

    try:
        kind = gguf.GGMLQuantizationType(type_id)
    except ValueError:
        raise _Unsupported(f"tensor {name!r} has the unknown type {type_id}") from None
    return (kind.name, *gguf.GGML_QUANT_SIZES[kind])


def _check_type(type_name: str) -> None:
    """Raises _Unsupported for a type that neither we nor the gguf package can read."""
    if type_name in DType.__members__:
        return
    import gguf

    kind = gguf.GGMLQuantizationType[type_name]
    try:
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        known = [t for t in DType.__members__ if t in gguf.GGMLQuantizationType.__members__]
        raise _Unsupported(
            f"tensors of type {type_name} are not supported; supported are {', '.join(known)} and "
            "what the gguf package can dequantize"
        ) from None
