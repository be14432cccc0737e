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


def quantization_of(quantization: str) -> Quantization:
    """The quantization that the configuration asks for; "auto" is none."""
    return UNQUANTIZED if quantization == "auto" else _QUANTIZATIONS[quantization]()
