"""Quantizations by name."""

from __future__ import annotations

from octavo.quant.base import UNQUANTIZED, Quantization
from octavo.quant.gguf import GGUFQuantization
from octavo.quant.integers import Int4Quantization, Int8Quantization

_QUANTIZATIONS: dict[str, type[Quantization]] = {
    "gguf": GGUFQuantization,
    "int8": Int8Quantization,
    "int4": Int4Quantization,
}


def quantization_of(quantization: str, dtype: str) -> Quantization:
    """The quantization that two options of the configuration ask for.

    "auto" keeps the blocks of GGUF files, unless a dtype asks for their values in it.
    """
    if quantization != "auto":
        return _QUANTIZATIONS[quantization]()
    return GGUFQuantization() if dtype == "auto" else UNQUANTIZED
