"""GGUF files as they are stored."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.contracts.tensor import DType, HostTensor
from octavo.contracts.weight_format import WeightFormat as F
from octavo.quant.gguf import GGUFQuantization, smallest_format
from tests.kernels.blocks import random_blocks

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
    blocks = random_blocks(np.random.default_rng(0), D.Q4_1, 2, 64)
    floats = HostTensor.of(np.zeros((2, 64), np.float32))
    assert quantization.linear_format("x", [blocks, blocks]) is F.INT4_G32_MIN
    assert quantization.linear_format("x", [blocks, floats]) is None
    assert quantization.embedding_format(blocks) is F.INT4_G32_MIN
    assert quantization.embedding_format(floats) is None


def test_what_weights_take() -> None:
    quantization = GGUFQuantization()
    assert quantization.bytes_per_weight(D.Q4_1, D.BF16) == 0.625
    assert quantization.bytes_per_weight(D.F16, D.BF16) == 2
