"""GGUF block formats as they are stored: values stay exactly the file's."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.contracts.tensor import DType
from octavo.contracts.weight_format import WeightFormat
from octavo.quant.base import Quantization


class GGUFQuantization(Quantization):
    """Weights stored in blocks stay quantized; all others are kept in the engine's dtype."""

    name = "gguf"

    def linear_format(self, name: str, stored: Sequence[DType]) -> WeightFormat | None:
        return smallest_format(set(stored))

    def embedding_format(self, stored: DType) -> WeightFormat | None:
        return smallest_format({stored})


def smallest_format(dtypes: set[DType]) -> WeightFormat | None:
    """The format of fewest bytes that holds every value of all these types. None where one of them
    is no block format.

    Rows of several types meet where llama.cpp's mixed files give q, k and v types of their own.
    """
    formats = [f for f in WeightFormat if all(f.holds(dtype) for dtype in dtypes)]
    return min(formats, key=lambda f: f.bytes_per_weight, default=None)
