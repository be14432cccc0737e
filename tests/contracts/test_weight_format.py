"""What each weight format can hold."""

from __future__ import annotations

import pytest

from octavo.contracts.tensor import DType
from octavo.contracts.weight_format import WeightFormat as F


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        (F.F32, 4),
        (F.BF16, 2),
        (F.INT8, 1),
        (F.INT8_G32, 1 + 2 / 32),
        (F.INT8_G16, 1 + 4 / 16),
        (F.INT4_G32, 18 / 32),
        (F.INT4_G32_MIN, 20 / 32),
        (F.INT4_G32_MIN_F32, 24 / 32),
    ],
)
def test_bytes_per_weight(format: F, expected: float) -> None:
    assert format.bytes_per_weight == expected


@pytest.mark.parametrize(
    ("format", "dtypes"),
    [
        (F.BF16, set()),
        (F.INT8, set()),
        (F.INT4_G32, {DType.Q4_0}),
        (F.INT4_G32_MIN, {DType.Q4_0, DType.Q4_1}),
        (F.INT4_G32_MIN_F32, {DType.Q4_0, DType.Q4_1, DType.Q4_K}),
        (F.INT8_G32, {DType.Q4_0, DType.Q5_0, DType.Q8_0}),
        (F.INT8_G16, {DType.Q4_0, DType.Q5_0, DType.Q8_0, DType.Q6_K}),
        (F.INT8_G32_MIN, {d for d in DType if d.is_block_format} - {DType.Q6_K}),
        (F.INT8_G16_MIN, {d for d in DType if d.is_block_format}),
    ],
)
def test_which_blocks_it_holds(format: F, dtypes: set[DType]) -> None:
    assert {dtype for dtype in DType if format.holds(dtype)} == dtypes
