"""No quantization: the engine's dtype for everything."""

from __future__ import annotations

from octavo.contracts.tensor import DType
from octavo.quant.base import UNQUANTIZED


def test_blocks_are_dequantized() -> None:
    assert UNQUANTIZED.linear_format("x", [DType.Q4_1]) is None
    assert UNQUANTIZED.embedding_format(DType.Q4_1) is None
