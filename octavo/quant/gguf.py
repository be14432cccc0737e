"""GGUF block formats as they are stored: values stay exactly the file's."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.contracts.tensor import DType, HostTensor
from octavo.contracts.weight_format import WeightFormat
from octavo.quant.base import Quantization


class GGUFQuantization(Quantization):
    """Weights stored in blocks stay quantized; all others are kept in the engine's dtype."""

    name = "gguf"

    def linear_format(self, name: str, parts: Sequence[HostTensor]) -> WeightFormat | None:
        return smallest_format({part.dtype for part in parts})

    def embedding_format(self, table: HostTensor) -> WeightFormat | None:
        return smallest_format({table.dtype})

    def bytes_per_weight(self, checkpoint: DType, dtype: DType) -> float:
        format = smallest_format({checkpoint})
        return dtype.itemsize if format is None else format.bytes_per_weight


def smallest_format(dtypes: set[DType]) -> WeightFormat | None:
    """The format of fewest bytes that holds every value of all these types. None where one of them
    is no block format.

    Rows of several types meet where llama.cpp's mixed files give q, k and v types of their own.
    """
    formats = [f for f in WeightFormat if all(f.holds(dtype) for dtype in dtypes)]
    return min(formats, key=lambda f: f.bytes_per_weight, default=None)
