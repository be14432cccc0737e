"""Safetensors files, memory-mapped: no copy, and bfloat16 without torch.

Format: huggingface/safetensors, README "Format": 8 bytes little-endian length of the header, a JSON
header {name: {dtype, shape, data_offsets}}, then the data without holes. Every number of the header
is checked before it is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from octavo.contracts.tensor import DType, HostTensor
from octavo.errors import UnsupportedModelError, WeightsError, shown
from octavo.models.mapping import PageReleaser, map_file, read_json_object

_MAX_HEADER_BYTES = 100_000_000  # as the safetensors library
_MAX_DIMS = 8
_DTYPES = {
    "F64": DType.F64,
    "F32": DType.F32,
    "F16": DType.F16,
    "BF16": DType.BF16,
    "I64": DType.I64,
    "I32": DType.I32,
    "I8": DType.I8,
    "U8": DType.U8,
}
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class SafetensorsFile:
    """One open file.

    Attributes:
        tensors: name → (dtype, shape, offset of its first byte in the file).

    Raises:
        WeightsError: truncated, overlapping or otherwise broken; the message names the tensor.
        UnsupportedModelError: an element type that Octavo does not know.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = map_file(path)
        self.tensors: dict[str, tuple[DType, tuple[int, ...], int]] = {}
        header, start = self._header()
        header.pop("__metadata__", None)
        spans = []
        for name, entry in header.items():
            dtype, shape, begin, end = self._entry(name, entry)
            self.tensors[name] = (dtype, shape, start + begin)
            spans.append((begin, end, name))
        expected = 0
        for begin, end, name in sorted(spans):
            if begin != expected:
                problem = "overlaps another tensor" if begin < expected else "leaves a hole"
                raise self._broken(f"tensor {name!r} {problem} at byte {start + begin}")
            expected = end
        if start + expected != len(self._map):
            raise self._broken(
                f"truncated or damaged: the tensors end at byte {start + expected}, the file at "
                f"{len(self._map)}; fetch the file again"
            )

    def tensor(self, name: str) -> HostTensor:
        """A view of one tensor in the mapped file; a copy where it is not aligned there."""
        dtype, shape, offset = self.tensors[name]
        stored = np.dtype("<u2") if dtype is DType.BF16 else np.dtype(dtype.value)
        data = np.frombuffer(self._map, stored, math.prod(shape), offset)
        if not data.flags.aligned:  # the header's length decides
            data = data.copy()
        return HostTensor(data.reshape(shape), dtype, shape)

    def page_releaser(self) -> PageReleaser:
        """Of this file's map, for a pass over its tensors."""
        return PageReleaser(self._map)

    def _header(self) -> tuple[dict[str, Any], int]:
        """The parsed header, and where the data starts."""
        size = len(self._map)
        length = int.from_bytes(self._map[:8], "little")
        if size < 8 or not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
            raise self._broken(f"its header would have {length} bytes, the file has {size}")
        try:
            header = json.loads(self._map[8 : 8 + length], object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise self._broken(f"its header is not valid JSON: {error}") from None
        if not isinstance(header, dict):
            raise self._broken("its header is no JSON object")
        return header, 8 + length

    def _entry(self, name: str, entry: Any) -> tuple[DType, tuple[int, ...], int, int]:
        if not isinstance(entry, dict) or not entry.keys() >= {"dtype", "shape", "data_offsets"}:
            raise self._broken(f"tensor {name!r} lacks dtype, shape or data_offsets")
        shape, offsets = entry["shape"], entry["data_offsets"]
        if not (_is_sizes(shape) and len(shape) <= _MAX_DIMS):
            raise self._broken(f"tensor {name!r} has the shape {shown(shape)}")
        if not (_is_sizes(offsets) and len(offsets) == 2):
            raise self._broken(f"tensor {name!r} has the data_offsets {shown(offsets)}")
        dtype = _DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
        if dtype is None:
            raise UnsupportedModelError(
                f"{self.path}: tensor {name!r} has dtype {shown(entry['dtype'])}; supported: "
                f"{', '.join(_DTYPES)}"
            )
        begin, end = offsets
        if end - begin != math.prod(shape) * dtype.itemsize:
            raise self._broken(
                f"tensor {name!r} of shape {shape} and dtype {entry['dtype']} cannot have "
                f"{end - begin} bytes"
            )
        return dtype, tuple(shape), begin, end

    def _broken(self, what: str) -> WeightsError:
        return WeightsError(f"{self.path}: {what}")


class SafetensorsCheckpoint:
    """All safetensors of a model folder: one file, or the shards of an index.

    Raises:
        WeightsError: none there, a shard or tensor missing, or a broken file.
    """

    def __init__(self, folder: Path) -> None:
        index = folder / _INDEX
        if index.is_file():
            self._files = _open_shards(folder, _read_index(index))
        elif (folder / _SINGLE).is_file():
            self._files = [SafetensorsFile(folder / _SINGLE)]
        else:
            self._files = [SafetensorsFile(p) for p in sorted(folder.glob("*.safetensors"))]
        if not self._files:
            raise WeightsError(_none_found(folder))

    @property
    def dtype(self) -> DType:
        """The type that most elements are stored in."""
        num_elements: dict[DType, int] = {}
        for file in self._files:
            for dtype, shape, _ in file.tensors.values():
                num_elements[dtype] = num_elements.get(dtype, 0) + math.prod(shape)
        return max(num_elements, key=num_elements.__getitem__, default=DType.F32)

    def weights(self) -> Iterator[tuple[str, HostTensor]]:
        """All tensors, file by file, in the order of their bytes."""
        for file in self._files:
            pages = file.page_releaser()
            for name in sorted(file.tensors, key=lambda n: file.tensors[n][2]):
                tensor = file.tensor(name)
                yield name, tensor
                pages.passed(tensor.data.nbytes)


def _read_index(path: Path) -> dict[str, set[str]]:
    """Shard file → the tensors that the index says it holds."""
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{path}: weight_map must be an object that maps tensors to files")
    shards: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or "/" in shard:
            raise WeightsError(f"{path}: {shown(shard)} is no safetensors file of this folder")
        shards.setdefault(shard, set()).add(tensor)
    return shards


def _open_shards(folder: Path, shards: dict[str, set[str]]) -> list[SafetensorsFile]:
    absent = [s for s in shards if not (folder / s).is_file()]
    if absent:
        raise WeightsError(
            f"{folder}: {len(absent)} of {len(shards)} shards are missing: "
            f"{', '.join(sorted(absent)[:8])}; fetch the model again"
        )
    files = []
    for shard in sorted(shards):
        file = SafetensorsFile(folder / shard)
        if missing := sorted(shards[shard] - file.tensors.keys()):
            raise WeightsError(
                f"{file.path}: {len(missing)} tensors of the index are not in it: "
                f"{', '.join(missing[:8])}"
            )
        files.append(file)
    return files


def _none_found(folder: Path) -> str:
    pickles = [p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in folder.glob(pattern)]
    if pickles:
        return (
            f"{folder} has no safetensors, only {sorted(pickles)[0]}: a pickle, which can run code "
            "when it is read. Convert the model to safetensors"
        )
    return f"{folder} has no *.safetensors file"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name appears twice")
    return result


def _is_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
