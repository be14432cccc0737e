"""No quantization: the engine's dtype for everything."""

from __future__ import annotations

import numpy as np

from octavo.contracts.tensor import DType
from octavo.quant.base import UNQUANTIZED
from tests.kernels.blocks import random_blocks


def test_blocks_are_dequantized() -> None:
    blocks = random_blocks(np.random.default_rng(0), DType.Q4_1, 2, 64)
    assert UNQUANTIZED.linear_format("x", [blocks]) is None
    assert UNQUANTIZED.embedding_format(blocks) is None
    assert UNQUANTIZED.bytes_per_weight(DType.Q4_1, DType.BF16) == 2
