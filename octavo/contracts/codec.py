"""msgpack for the wire: msgspec structs, numpy arrays as a typed extension. Never pickle.

An array travels as extension 1: dtype name, shape, raw little-endian bytes. Only the dtypes below
are accepted, and the byte count must match the shape, so that a hostile frame cannot do more than
raise `msgspec.DecodeError`.
"""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

_EXT_NDARRAY = 1
_DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("float32", "int32", "int64", "uint8", "uint16")
}
_MAX_NDIM = 4

T = TypeVar("T")


def _enc_hook(obj: Any) -> Any:
    if isinstance(obj, np.ndarray) and obj.dtype.name in _DTYPES:
        if obj.ndim > _MAX_NDIM:
            raise TypeError(f"an array of {obj.ndim} dimensions cannot travel over the wire")
        header = msgspec.msgpack.encode((obj.dtype.name, obj.shape))
        body = obj.astype(_DTYPES[obj.dtype.name], copy=False).tobytes()
        return msgspec.msgpack.Ext(_EXT_NDARRAY, len(header).to_bytes(2, "little") + header + body)
    raise TypeError(f"{type(obj).__name__} cannot travel over the wire")


def _ext_hook(code: int, data: memoryview) -> Any:
    if code != _EXT_NDARRAY:
        raise msgspec.ValidationError(f"unknown extension {code}")
    end = 2 + int.from_bytes(data[:2], "little")
    name, shape = msgspec.msgpack.decode(data[2:end], type=tuple[str, tuple[int, ...]])
    dtype = _DTYPES.get(name)
    if dtype is None or len(shape) > _MAX_NDIM or any(n < 0 for n in shape):
        raise msgspec.ValidationError(f"array of {name!r} {shape} is not accepted")
    if math.prod(shape) * dtype.itemsize != len(data) - end:
        raise msgspec.ValidationError(f"array {shape} of {name} has {len(data) - end} bytes")
    try:
        return np.frombuffer(data[end:], dtype=dtype).reshape(shape)
    except ValueError as error:  # a dimension beside a zero that no array can have
        raise msgspec.ValidationError(f"array {shape} of {name}: {error}") from error


def _dec_hook(kind: type, obj: Any) -> Any:
    if kind is np.ndarray and isinstance(obj, np.ndarray):
        return obj
    raise msgspec.ValidationError(f"expected {kind.__name__}")


class Encoder:
    """Encodes any contract message."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_enc_hook)

    def encode(self, message: Any) -> bytes:
        return self._encoder.encode(message)


class Decoder(Generic[T]):
    """Decodes messages of one type. Anything else is a DecodeError (ValidationError is one)."""

    def __init__(self, kind: type[T]) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind, ext_hook=_ext_hook, dec_hook=_dec_hook)

    def decode(self, data: bytes | memoryview) -> T:
        try:
            return self._decoder.decode(data)
        except RecursionError as error:
            raise msgspec.DecodeError("nested too deeply") from error
