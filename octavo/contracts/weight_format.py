"""How linear weights are kept: the formats that kernels multiply.

A quantized weight [N, K] holds small codes; its values are `scale * (code - zero_point)` or, with
minima, `scale * code + min`, where a scale (and a minimum) belongs to one output and a group of K,
or to all of an output. The rows that it multiplies are quantized by the same groups, and a group's
products are summed as integers (kernels/ops.py). `csrc/api/types.h` has the layouts.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from octavo.contracts.tensor import DType


@dataclass(frozen=True, slots=True)
class Grouping:
    """What a quantized format can express.

    Attributes:
        bits: of a code.
        group: K that share a scale, of the activations and of an output's weights.
        has_min: a group has a minimum, too.
        wide: scales are float32; otherwise float16.
        per_output: an output's weights share one scale; only activations are grouped.
        has_outlier: four activations of a group have 16 bits, all others 8.
    """

    bits: int
    group: int
    has_min: bool = False
    wide: bool = False
    per_output: bool = False
    has_outlier: bool = True


class WeightFormat(enum.Enum):
    """The formats, by their native names."""

    F32 = "float32"
    BF16 = "bfloat16"
    INT8 = "int8"
    INT8_G32 = "int8_g32"
    INT8_G32_MIN = "int8_g32_min"
    INT8_G16 = "int8_g16"
    INT8_G16_MIN = "int8_g16_min"
    INT4_G32 = "int4_g32"
    INT4_G32_MIN = "int4_g32_min"
    INT4_G32_MIN_F32 = "int4_g32_min_f32"

    @property
    def grouping(self) -> Grouping | None:
        """None for float32 and bfloat16."""
        return _GROUPINGS.get(self.value)

    @property
    def bytes_per_weight(self) -> float:
        """Codes, scales and minima; without scales per output, and padding."""
        g = self.grouping
        if g is None:
            return DType(self.value).itemsize
        per_group = (4 if g.wide else 2) * (2 if g.has_min else 1)
        return g.bits / 8 + (0 if g.per_output else per_group / g.group)

    def holds(self, dtype: DType) -> bool:
        """Whether every value of a GGUF block format is a value of this format."""
        mine, theirs = self.grouping, _BLOCKS.get(dtype)
        return mine is not None and theirs is not None and _covers(mine, theirs)


_GROUPINGS = {
    "int8": Grouping(8, 64, wide=True, per_output=True, has_outlier=False),
    "int8_g32": Grouping(8, 32),
    "int8_g32_min": Grouping(8, 32, has_min=True, wide=True),
    "int8_g16": Grouping(8, 16, wide=True),
    "int8_g16_min": Grouping(8, 16, has_min=True, wide=True),
    "int4_g32": Grouping(4, 32),
    "int4_g32_min": Grouping(4, 32, has_min=True),
    "int4_g32_min_f32": Grouping(4, 32, has_min=True, wide=True),
}
_BLOCKS = {
    DType.Q4_0: Grouping(4, 32),
    DType.Q4_1: Grouping(4, 32, has_min=True),
    DType.Q5_0: Grouping(5, 32),
    DType.Q5_1: Grouping(5, 32, has_min=True),
    DType.Q8_0: Grouping(8, 32),
    DType.Q4_K: Grouping(4, 32, has_min=True, wide=True),
    DType.Q5_K: Grouping(5, 32, has_min=True, wide=True),
    DType.Q6_K: Grouping(6, 16, wide=True),
}
"""Scales of K-quants are products of a float16 and a small integer: exact in float32."""


def _covers(mine: Grouping, theirs: Grouping) -> bool:
    return (
        not mine.per_output
        and theirs.group % mine.group == 0
        and theirs.bits <= mine.bits
        and theirs.has_min <= mine.has_min
        and theirs.wide <= mine.wide
    )
