"""Online quantization: any checkpoint's matrices, rounded while they are loaded."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.contracts.tensor import DType, HostTensor
from octavo.contracts.weight_format import WeightFormat
from octavo.quant.base import Quantization


class Int8Quantization(Quantization):
    """Symmetric int8 with one scale per output."""

    name = "int8"

    def linear_format(
        self, parts: Sequence[HostTensor], *, head: bool = False
    ) -> WeightFormat | None:
        return WeightFormat.INT8

    def embedding_format(self, table: HostTensor) -> WeightFormat | None:
        return None

    def bytes_per_weight(self, checkpoint: DType, dtype: DType) -> float:
        return WeightFormat.INT8.bytes_per_weight


class Int4Quantization(Quantization):
    """4 bits with scale and minimum per group of 32; the head in 8 bits, as in llama.cpp's files:
    its errors go straight into the logits."""

    name = "int4"

    def linear_format(
        self, parts: Sequence[HostTensor], *, head: bool = False
    ) -> WeightFormat | None:
        return WeightFormat.INT8_G32 if head else WeightFormat.INT4_G32_MIN

    def embedding_format(self, table: HostTensor) -> WeightFormat | None:
        return None

    def bytes_per_weight(self, checkpoint: DType, dtype: DType) -> float:
        return WeightFormat.INT4_G32_MIN.bytes_per_weight
