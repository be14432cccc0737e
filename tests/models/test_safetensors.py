from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from octavo.contracts.tensor import DType
from octavo.errors import ModelError, UnsupportedModelError, WeightsError
from octavo.models.safetensors import SafetensorsCheckpoint, SafetensorsFile

KINDS = {
    torch.float64: DType.F64,
    torch.float32: DType.F32,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.int64: DType.I64,
    torch.int32: DType.I32,
    torch.int8: DType.I8,
    torch.uint8: DType.U8,
}


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


def entry(shape: list[Any], begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_are_what_torch_saved(kind: torch.dtype, tmp_path: Path) -> None:
    values = (torch.arange(24).reshape(2, 3, 4) - 7).to(kind)
    save_file({"w": values, "s": values[0, 0, 0].clone()}, tmp_path / "f.safetensors")
    file = SafetensorsFile(tmp_path / "f.safetensors")
    tensor = file.tensor("w")
    assert (tensor.dtype, tensor.shape) == (KINDS[kind], (2, 3, 4))
    assert np.array_equal(tensor.to_float32(), values.float().numpy())
    assert file.tensor("s").shape == ()
    assert not tensor.data.flags.owndata, "a copy of a mapped tensor"
    assert not tensor.data.flags.writeable


def test_empty_and_metadata_and_unaligned_data(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "a": entry([0, 4], 0, 0),
        "b": entry([2], 0, 8),
    }
    raw = json.dumps(header).encode()
    raw += b" " * (3 - (8 + len(raw)) % 4)  # the data begins at an odd place
    values = np.array([1.5, -2.0], dtype=np.float32)
    file = SafetensorsFile(write(tmp_path / "f.safetensors", raw, values.tobytes()))
    assert file.tensors.keys() == {"a", "b"}
    assert file.tensor("a").data.shape == (0, 4)
    assert np.array_equal(file.tensor("b").data, values)
    assert file.tensor("b").data.flags.aligned


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"{ ", b"", "not valid JSON"),
        (b"[]", b"", "no JSON object"),
        (b"[" * 200_000, b"", "not valid JSON"),
        (b'{"a":1,"a":2}', b"", "appears twice"),
        ({"w": 5}, b"", "tensor 'w' lacks"),
        ({"w": {"dtype": "F32", "shape": [1]}}, b"", "tensor 'w' lacks"),
        ({"w": entry([2], 0, 4)}, b"1234", "cannot have 4 bytes"),
        ({"w": entry([-1], 0, 4)}, b"1234", r"shape \[-1\]"),
        ({"w": entry([True], 0, 4)}, b"1234", "shape"),
        ({"w": entry(["1"], 0, 4)}, b"1234", "shape"),
        ({"w": entry([1] * 9, 0, 4)}, b"1234", "shape"),
        ({"w": entry([1], 4, 0)}, b"1234", "cannot have -4 bytes"),
        ({"w": entry([1], -4, 0)}, b"1234", "data_offsets"),
        ({"w": entry([1], 0.0, 4)}, b"1234", "data_offsets"),
        ({"w": entry([10**9, 10**9, 10**9], 0, 4)}, b"1234", "cannot have"),
        ({"w": entry([2**60], 0, 2**62)}, b"1234", "truncated or damaged"),
        ({"w": entry([1], 0, 4)}, b"123", "truncated or damaged"),
        ({"w": entry([1], 0, 4)}, b"12345", "truncated or damaged"),
        ({"w": entry([1], 0, 4), "v": entry([1], 0, 4)}, b"1234", "overlaps"),
        ({"w": entry([1], 0, 4), "v": entry([1], 8, 12)}, b"1" * 12, "leaves a hole"),
    ],
)
def test_broken_files_are_named_at_once(
    header: Any, data: bytes, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "f.safetensors", header, data)
    with pytest.raises(WeightsError, match=message) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"\x05", b"\xff" * 8, (1 << 40).to_bytes(8, "little") + b"{}", b"\0" * 64]
)
def test_absurd_header_lengths(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="its header would have"):
        SafetensorsFile(path)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "BOOL", "", None, 5])
def test_unknown_dtypes_list_the_known(dtype: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "f.safetensors", {"w": entry([4], 0, 4, dtype)}, b"1234")
    with pytest.raises(UnsupportedModelError, match="supported: F64, F32, F16, BF16"):
        SafetensorsFile(path)


@given(data=st.data())
def test_no_damage_gets_past_the_error_tree(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    write(path, {"w": entry([2, 2], 0, 16), "v": entry([4], 16, 24, "BF16")}, b"x" * 24)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 25))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        file = SafetensorsFile(path)
    except ModelError:
        return
    for name in file.tensors:
        file.tensor(name)


# ---------------------------------------------------------------- folders


def save(folder: Path, **files: dict[str, torch.Tensor]) -> None:
    for name, tensors in files.items():
        save_file(tensors, folder / f"{name}.safetensors")


def index(folder: Path, weight_map: Any) -> None:
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)


A, B = {"a": torch.ones(3)}, {"b": torch.zeros(2, 2, dtype=torch.bfloat16)}


def test_shards_of_an_index(tmp_path: Path) -> None:
    save(tmp_path, one=A, two=B, consolidated=A | B)
    index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    checkpoint = SafetensorsCheckpoint(tmp_path)
    assert {name: t.shape for name, t in checkpoint.weights()} == {"a": (3,), "b": (2, 2)}
    assert checkpoint.dtype is DType.BF16


def test_one_file_or_whatever_is_there(tmp_path: Path) -> None:
    save(tmp_path, other=B, model=A)
    assert [name for name, _ in SafetensorsCheckpoint(tmp_path).weights()] == ["a"]
    (tmp_path / "model.safetensors").rename(tmp_path / "another.safetensors")
    assert [name for name, _ in SafetensorsCheckpoint(tmp_path).weights()] == ["a", "b"]


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "one.safetensors", "b": "two.safetensors"}, "1 of 2 shards are missing: two"),
        ({"a": "one.safetensors", "c": "one.safetensors"}, "are not in it: c"),
        ({"a": "../one.safetensors"}, "no safetensors file of this folder"),
        ({"a": "one.bin"}, "no safetensors file of this folder"),
        ({"a": 7}, "no safetensors file of this folder"),
        ({}, "weight_map must be"),
        ([], "weight_map must be"),
    ],
)
def test_broken_indexes(weight_map: Any, message: str, tmp_path: Path) -> None:
    save(tmp_path, one=A)
    index(tmp_path, weight_map)
    with pytest.raises(WeightsError, match=message):
        SafetensorsCheckpoint(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, r"has no \*\.safetensors file"),
        (
            lambda folder: (folder / "pytorch_model.bin").write_bytes(b"x"),
            "a pickle, which can run",
        ),
    ],
)
def test_folders_without_safetensors(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    make(tmp_path)
    with pytest.raises(WeightsError, match=message):
        SafetensorsCheckpoint(tmp_path)
