"""From the configuration to a quantization."""

from __future__ import annotations

import pytest

from octavo.quant.registry import quantization_of


@pytest.mark.parametrize(
    ("quantization", "name"),
    [("auto", "none"), ("gguf", "gguf"), ("int8", "int8"), ("int4", "int4")],
)
def test_names(quantization: str, name: str) -> None:
    assert quantization_of(quantization).name == name
