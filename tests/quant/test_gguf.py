"""GGUF files as they are stored."""

from __future__ import annotations

import pytest

from octavo.contracts.tensor import DType
from octavo.contracts.weight_format import WeightFormat as F
from octavo.quant.gguf import GGUFQuantization, smallest_format

D = DType


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ({D.Q4_0}, F.INT4_G32),
        ({D.Q4_1}, F.INT4_G32_MIN),
        ({D.Q4_K}, F.INT4_G32_MIN_F32),
        ({D.Q5_0}, F.INT8_G32),
        ({D.Q5_1}, F.INT8_G32_MIN),
        ({D.Q5_K}, F.INT8_G32_MIN),
        ({D.Q6_K}, F.INT8_G16),
        ({D.Q8_0}, F.INT8_G32),
        ({D.Q4_0, D.Q4_1}, F.INT4_G32_MIN),
        ({D.Q5_0, D.Q8_0}, F.INT8_G32),
        ({D.Q4_K, D.Q6_K}, F.INT8_G16_MIN),
        ({D.F32}, None),
        ({D.Q4_K, D.BF16}, None),
    ],
)
def test_the_smallest_format_that_holds_all(dtypes: set[DType], expected: F | None) -> None:
    assert smallest_format(dtypes) is expected


def test_blocks_stay_and_floats_take_the_engines_dtype() -> None:
    quantization = GGUFQuantization()
    assert quantization.linear_format("x", [D.Q4_1, D.Q4_1]) is F.INT4_G32_MIN
    assert quantization.linear_format("x", [D.Q4_1, D.F32]) is None
    assert quantization.embedding_format(D.Q4_1) is F.INT4_G32_MIN
    assert quantization.embedding_format(D.F32) is None
