"""Online quantization: which matrix gets which format."""

from __future__ import annotations

import pytest

from octavo.contracts.tensor import DType
from octavo.contracts.weight_format import WeightFormat
from octavo.quant.integers import Int4Quantization, Int8Quantization


@pytest.mark.parametrize(
    ("module", "format"),
    [
        ("model.layers.3.self_attn.q_proj", WeightFormat.INT8_G32),
        ("model.layers.3.self_attn.qkv_proj", WeightFormat.INT8_G32),
        ("model.layers.3.self_attn.o_proj", WeightFormat.INT4_G32_MIN),
        ("model.layers.3.mlp.gate_proj", WeightFormat.INT4_G32_MIN),
        ("model.layers.3.mlp.gate_up_proj", WeightFormat.INT4_G32_MIN),
        ("model.layers.3.mlp.down_proj", WeightFormat.INT8_G32),
        ("lm_head", WeightFormat.INT8_G32),
        ("model.embed_tokens", WeightFormat.INT8_G32),
    ],
)
def test_int4_keeps_in_8_bits_what_hurts(module: str, format: WeightFormat) -> None:
    assert Int4Quantization().linear_format(module, [DType.BF16]) is format


def test_int8_is_one_format() -> None:
    quantization = Int8Quantization()
    assert quantization.linear_format("lm_head", [DType.BF16]) is WeightFormat.INT8


@pytest.mark.parametrize("quantization", [Int8Quantization(), Int4Quantization()])
def test_tables_that_are_only_gathered_from_stay(quantization: Int8Quantization) -> None:
    assert quantization.embedding_format(DType.BF16) is None
