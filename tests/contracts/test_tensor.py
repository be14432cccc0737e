"""Host tensors: conversions against torch and the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.tensor import DType, HostTensor, bf16_to_float32, float32_to_bf16

BLOCK_FORMATS = [d for d in DType if d.is_block_format]
SPECIAL = np.array(
    [
        *(0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000),  # zeros, subnormals
        *(0x3F808000, 0x3F818000, 0x3F80FFFF, 0x3F807FFF),  # ties to even, just off a tie
        *(0x7F7FFFFF, 0x7F7F8000, 0x7F7F7FFF, 0xFF7FFFFF),  # rounds up to infinity, or not quite
        *(0x7F800000, 0xFF800000),  # infinities
        *(0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0xFF80FFFF),  # NaN: quiet, signalling, all ones
    ],
    dtype=np.uint32,
)


def torch_bf16_bits(values: np.ndarray) -> np.ndarray:
    rounded = torch.from_numpy(values.copy()).to(torch.bfloat16)
    return rounded.view(torch.int16).numpy().view(np.uint16)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_bf16_rounds_as_torch_does(bits: list[int]) -> None:
    values = np.array(bits, dtype=np.uint32).view(np.float32)
    ours, theirs = float32_to_bf16(values), torch_bf16_bits(values)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(ours[number], theirs[number])
    assert np.isnan(bf16_to_float32(ours[~number])).all()


def test_bf16_at_the_edges() -> None:
    values = SPECIAL.view(np.float32)
    ours = float32_to_bf16(values)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(ours[number], torch_bf16_bits(values)[number])
    nans = bf16_to_float32(ours[~number])
    assert np.isnan(nans).all()
    np.testing.assert_array_equal(np.signbit(nans), np.signbit(values[~number]))


def test_bf16_widens_exactly_for_every_pattern() -> None:
    bits = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    wide = bf16_to_float32(bits)
    np.testing.assert_array_equal(wide.view(np.uint32), bits.astype(np.uint32) << 16)
    number = ~np.isnan(wide)
    np.testing.assert_array_equal(float32_to_bf16(wide[number]), bits[number])


def test_bf16_takes_any_shape_and_stride() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for view in (values, values.transpose(2, 0, 1), values[:, ::2], values[0, 0, 0:0]):
        bits = float32_to_bf16(view)
        assert bits.shape == view.shape
        np.testing.assert_array_equal(bf16_to_float32(bits), view)


@pytest.mark.parametrize(
    "name", ["float32", "float16", "float64", "int8", "uint8", "int32", "int64"]
)
def test_plain_arrays(name: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(name)
    tensor = HostTensor.of(array)
    assert tensor.dtype.value == name
    assert tensor.dtype.itemsize == array.itemsize
    assert tensor.shape == (2, 3)
    wide = tensor.to_float32()
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide, array)


def test_float16_is_exact() -> None:
    bits = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    wide = HostTensor.of(bits.view(np.float16)).to_float32()
    np.testing.assert_array_equal(wide, bits.view(np.float16).astype(np.float64))


def test_bfloat16_tensor() -> None:
    values = np.array([[1.5, -2.0], [0.0, np.inf]], np.float32)
    tensor = HostTensor(float32_to_bf16(values), DType.BF16, (2, 2))
    np.testing.assert_array_equal(tensor.to_float32(), values)


def test_no_copy_for_float32() -> None:
    array = np.zeros(4, np.float32)
    assert HostTensor.of(array).to_float32() is array


@pytest.mark.parametrize("dtype", BLOCK_FORMATS, ids=lambda d: d.name)
def test_gguf_names_every_block_format(dtype: DType) -> None:
    assert gguf.GGMLQuantizationType[dtype.name] in gguf.GGML_QUANT_SIZES
    assert dtype.itemsize == 0


# Largest error as a share of the block's largest magnitude: half a step of the format, and the
# f16 rounding of its scale. Formats that gguf can read but not write are below.
ROUND_TRIP = {
    DType.Q4_0: 1 / 8,
    DType.Q4_1: 1 / 15,
    DType.Q5_0: 1 / 16,
    DType.Q5_1: 1 / 31,
    DType.Q8_0: 1 / 254,
}


@pytest.mark.parametrize("dtype", ROUND_TRIP, ids=lambda d: d.name)
def test_block_formats_round_trip(dtype: DType) -> None:
    values = np.random.default_rng(0).standard_normal((4, 96)).astype(np.float32)
    raw = gguf.quantize(values, gguf.GGMLQuantizationType[dtype.name])
    wide = HostTensor(raw, dtype, (4, 96)).to_float32()
    assert wide.dtype == np.float32
    largest = np.abs(values.reshape(4, 3, 32)).max(axis=-1, keepdims=True)
    error = np.abs(wide - values).reshape(4, 3, 32) / largest
    assert 0 < error.max() <= ROUND_TRIP[dtype] * 1.01


def test_q4_1_by_hand() -> None:
    """One block: half d, half m, then 16 bytes; low nibbles are the first 16 values."""
    d, m = np.float16(0.5), np.float16(-3)
    nibbles = np.arange(32) % 16
    packed = (nibbles[:16] | (nibbles[16:] << 4)).astype(np.uint8)
    raw = np.concatenate([np.array([d, m]).view(np.uint8), packed])[None]
    wide = HostTensor(raw, DType.Q4_1, (1, 32)).to_float32()
    np.testing.assert_array_equal(wide[0], nibbles * 0.5 - 3)


def test_q8_0_by_hand() -> None:
    quants = np.arange(-16, 16, dtype=np.int8)
    raw = np.concatenate([np.array([np.float16(0.25)]).view(np.uint8), quants.view(np.uint8)])[None]
    wide = HostTensor(raw, DType.Q8_0, (1, 32)).to_float32()
    np.testing.assert_array_equal(wide[0], quants * 0.25)


def test_q6_k_by_hand() -> None:
    """256 values: 128 bytes of low nibbles, 64 of high bit pairs, 16 int8 scales, half d.

    With every quant 0b10_0001 (33, so +1 after the offset of 32), a value is its group's scale · d.
    """
    low = np.full(128, 0x11, np.uint8)
    high = np.full(64, 0b10101010, np.uint8)
    scales = np.arange(-8, 8, dtype=np.int8)
    d = np.array([np.float16(0.5)])
    raw = np.concatenate([low, high, scales.view(np.uint8), d.view(np.uint8)])[None]
    wide = HostTensor(raw, DType.Q6_K, (1, 256)).to_float32()
    np.testing.assert_array_equal(wide[0], np.repeat(scales, 16) * 0.5)


@pytest.mark.parametrize(
    ("dtype", "offset"), [(DType.Q4_K, 0), (DType.Q5_K, 16)], ids=["Q4_K", "Q5_K"]
)
def test_q4_k_and_q5_k_by_hand(dtype: DType, offset: int) -> None:
    """256 values in 8 groups of 32: half d, half dmin, 12 bytes of 6-bit scales and mins, [32 bytes
    of fifth bits,] 128 bytes of nibbles. All quants 3 (+16): d·scale·q - dmin·min.
    """
    scale, minimum = np.arange(1, 9), np.arange(8, 0, -1)  # all < 16: the two top bits stay 0
    packed = np.zeros(12, np.uint8)
    packed[0:4], packed[4:8] = scale[:4], minimum[:4]
    packed[8:12] = scale[4:] | (minimum[4:] << 4)
    halves = np.array([np.float16(0.5), np.float16(0.25)]).view(np.uint8)
    fifth = np.full(32, 0xFF, np.uint8) if offset else np.zeros(0, np.uint8)
    raw = np.concatenate([halves, packed, fifth, np.full(128, 0x33, np.uint8)])[None]
    wide = HostTensor(raw, dtype, (1, 256)).to_float32()
    expected = 0.5 * scale * (3 + offset) - 0.25 * minimum
    np.testing.assert_array_equal(wide[0], np.repeat(expected, 32))
