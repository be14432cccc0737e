"""From the configuration to a quantization."""

from __future__ import annotations

import pytest

from octavo.quant.registry import quantization_of


@pytest.mark.parametrize(
    ("quantization", "dtype", "name"),
    [
        ("auto", "auto", "gguf"),
        ("auto", "bfloat16", "none"),
        ("auto", "float32", "none"),
        ("gguf", "float32", "gguf"),
        ("int8", "auto", "int8"),
        ("int4", "bfloat16", "int4"),
    ],
)
def test_names(quantization: str, dtype: str, name: str) -> None:
    assert quantization_of(quantization, dtype).name == name
