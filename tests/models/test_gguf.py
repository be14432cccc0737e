from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.tensor import DType
from octavo.errors import ModelError, UnsupportedModelError, WeightsError
from octavo.models.gguf import _TYPES, GGUFFile
from tests.models.gguf_lab import llama_metadata, llama_tensors, write_gguf

WRITABLE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_metadata_of_every_type_is_read(tmp_path: Path) -> None:
    values = {
        "a.text": "héllo",
        "a.yes": True,
        "a.int": 7,
        "a.float": 0.5,
        "a.words": ["x", "", "ü"],
    }
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_string("a.text", "héllo")
    writer.add_bool("a.yes", True)
    writer.add_uint32("a.int", 7)
    writer.add_float64("a.float", 0.5)
    writer.add_array("a.words", ["x", "", "ü"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = GGUFFile(tmp_path / "m.gguf").metadata
    assert {k: metadata[k] for k in values} == values
    assert type(metadata["a.int"]) is int
    assert metadata["a.numbers"].tolist() == [1, -2, 3]


@pytest.mark.parametrize("type_name", WRITABLE)
def test_tensors_are_what_the_gguf_package_reads(type_name: str, tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((6, 256), dtype=np.float32)
    path = write_gguf(tmp_path / "t.gguf", {"w": (values, type_name)})
    tensor = GGUFFile(path).tensor("w")
    (theirs,) = gguf.GGUFReader(path).tensors
    assert tensor.shape == (6, 256)
    assert np.array_equal(tensor.to_float32(), gguf.dequantize(theirs.data, theirs.tensor_type))
    kept = DType.__members__.get(type_name)
    assert tensor.dtype is (kept or DType.F32)
    if kept is not None:
        assert np.array_equal(
            tensor.data.view(np.uint8).ravel(), theirs.data.view(np.uint8).ravel()
        )
        assert not tensor.data.flags.owndata, "a copy of a mapped tensor"


def test_a_quantized_vector_has_no_rows_and_is_dequantized(tmp_path: Path) -> None:
    values = np.linspace(-1, 1, 64, dtype=np.float32)
    tensor = GGUFFile(write_gguf(tmp_path / "v.gguf", {"v": (values, "Q8_0")})).tensor("v")
    assert tensor.dtype is DType.F32
    assert tensor.shape == (64,)
    assert np.abs(tensor.data - values).max() < 0.01


def test_sizes_of_types_are_the_gguf_packages() -> None:
    kinds = {kind.value: kind for kind in gguf.GGMLQuantizationType}
    theirs = {i: (kinds[i].name, *gguf.GGML_QUANT_SIZES[kinds[i]]) for i in _TYPES}
    assert theirs == _TYPES
    known = {kind.name for kind in kinds.values()} & DType.__members__.keys()
    assert {name for name, _, _ in _TYPES.values()} == known


def test_main_dtype_is_that_of_most_elements(tiny: Path) -> None:
    assert GGUFFile(tiny).main_dtype() is DType.Q4_1


def damaged(path: Path, tmp_path: Path, change: Callable[[bytearray], bytes | None]) -> Path:
    data = bytearray(path.read_bytes())
    changed = change(data)
    target = tmp_path / "damaged.gguf"
    target.write_bytes(data if changed is None else changed)
    return target


def put(at: int, fmt: str, value: int) -> Callable[[bytearray], None]:
    return lambda data: struct.pack_into(fmt, data, at, value)


def in_tensor_header(name: str, offset: int, fmt: str, value: int) -> Callable[[bytearray], None]:
    """Overwrite a field of a matrix' header; `offset` counts from the end of its name: 0 number of
    dims, 4 first dim, 12 second dim, 20 type, 24 data offset."""

    def change(data: bytearray) -> None:
        at = data.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name)
        struct.pack_into(fmt, data, at + offset, value)

    return change


Q = "blk.1.attn_q.weight"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda data: b"", WeightsError, "cannot be read"),
        (lambda data: data[:3], WeightsError, "not a GGUF file"),
        (lambda data: data[:10], WeightsError, "truncated"),
        (lambda data: data[:200], WeightsError, "truncated"),
        (lambda data: data[:-1000], WeightsError, "truncated: tensor"),
        (put(0, "<I", 0x46554747 + 1), WeightsError, "not a GGUF file"),
        (put(4, "<I", 99), UnsupportedModelError, "version 99"),
        (put(4, ">I", 3), UnsupportedModelError, "big-endian"),
        (put(8, "<Q", 2**63), WeightsError, "announces 9223372036854775808"),
        (put(16, "<Q", 2**40), WeightsError, "announces"),
        (put(24, "<Q", 2**62), WeightsError, "announces"),
        (in_tensor_header(Q, 0, "<I", 2**31), WeightsError, "dimensions"),
        (in_tensor_header(Q, 4, "<Q", 2**60), WeightsError, "truncated"),
        (in_tensor_header(Q, 4, "<Q", 0), WeightsError, "empty shape"),
        (in_tensor_header(Q, 4, "<Q", 33), WeightsError, "no whole blocks of Q4_1"),
        (in_tensor_header(Q, 20, "<I", 4242), UnsupportedModelError, "unknown type 4242"),
        (in_tensor_header(Q, 20, "<I", 27), WeightsError, "overlap"),  # I64
        (in_tensor_header(Q, 24, "<Q", 2**62), WeightsError, "truncated"),
        (in_tensor_header(Q, 24, "<Q", 1), WeightsError, "not aligned"),
    ],
)
def test_broken_files_are_named_at_once(
    tiny: Path,
    tmp_path: Path,
    change: Callable[[bytearray], bytes | None],
    error: type[ModelError],
    message: str,
) -> None:
    path = damaged(tiny, tmp_path, change)
    with pytest.raises(error, match=message) as caught:
        GGUFFile(path)
    assert str(path) in str(caught.value)


def test_types_that_nobody_reads_are_named_with_those_that_can_be(tmp_path: Path) -> None:
    values = np.zeros((1, 32), dtype=np.int16)
    path = write_gguf(tmp_path / "i16.gguf", {"w": (values, "I16")})
    with pytest.raises(UnsupportedModelError, match=r"I16 are not supported; supported are F32"):
        GGUFFile(path)


def test_bad_alignment(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", metadata=llama_metadata() | {"general.alignment": 32})
    broken = damaged(path, tmp_path, lambda data: _replace_alignment(data, 24))
    with pytest.raises(WeightsError, match="alignment=24"):
        GGUFFile(broken)


def _replace_alignment(data: bytearray, value: int) -> None:
    at = data.index(b"general.alignment") + len("general.alignment") + 4
    struct.pack_into("<I", data, at, value)


@pytest.mark.parametrize("duplicate", ["blk.1.attn_v.weight", "blk.1.attn_k.weight"])
def test_a_name_twice(tiny: Path, tmp_path: Path, duplicate: str) -> None:
    other = {"blk.1.attn_v.weight": "blk.2.attn_v.weight"}.get(duplicate, "blk.0.attn_k.weight")

    def change(data: bytearray) -> bytes:
        return bytes(data).replace(other.encode(), duplicate.encode())

    with pytest.raises(WeightsError, match="appears twice"):
        GGUFFile(damaged(tiny, tmp_path, change))


@given(data=st.data())
def test_no_damage_gets_past_the_error_tree(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = folder / "fuzz-source.gguf"
    if not path.exists():
        write_gguf(path, dict(list(llama_tensors().items())[:4]))
    raw = bytearray(path.read_bytes())
    header = raw.index(b"output_norm") if b"output_norm" in raw else len(raw) // 8
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, header))] = data.draw(st.integers(0, 255))
    target = folder / "fuzz.gguf"
    target.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        file = GGUFFile(target)
    except ModelError:
        return
    for name in file.tensors:
        file.tensor(name)
