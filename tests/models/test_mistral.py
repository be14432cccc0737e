from __future__ import annotations

from typing import Any

import pytest

from octavo.config.model import ConfigReader
from octavo.contracts.kv_spec import FullAttentionSpec, SlidingWindowSpec
from octavo.contracts.tensor import DType
from octavo.errors import UnsupportedModelError
from octavo.models.registry import build_model
from tests.kernels.backends import BACKENDS
from tests.models.oracle import assert_equals_transformers
from tests.models.test_llama import CONFIG


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "options",
    [
        {"sliding_window": 16},
        {"sliding_window": 21, "num_key_value_heads": 1},
        {"sliding_window": 7, "tie_word_embeddings": True},
        {"sliding_window": 200},
        {"sliding_window": None},
        {"sliding_window": None, "head_dim": 24},
    ],
    ids=lambda options: "-".join(f"{v}" for v in options.values()),
)
def test_equals_transformers(options: dict[str, Any], backend: str) -> None:
    """Texts of 87 tokens: longer than most of the windows."""
    assert_equals_transformers("MistralForCausalLM", backend, **options)


@pytest.mark.parametrize("window", [None, 4096])
def test_the_window_becomes_a_kv_spec(window: int | None) -> None:
    values = CONFIG | {"architectures": ["MistralForCausalLM"], "sliding_window": window}
    kept = {"num_kv_heads": 4, "head_size": 8, "head_size_v": 8, "dtype": DType.F32}
    spec = SlidingWindowSpec(**kept, sliding_window=window) if window else FullAttentionSpec(**kept)
    specs = build_model(ConfigReader(values, "config.json")).kv_specs(DType.F32)
    assert list(specs.values()) == [spec] * 3


@pytest.mark.parametrize("window", [0, -1, "4096", 1.5])
def test_wrong_windows_are_refused(window: Any) -> None:
    values = CONFIG | {"architectures": ["MistralForCausalLM"], "sliding_window": window}
    with pytest.raises(UnsupportedModelError, match="sliding_window"):
        build_model(ConfigReader(values, "config.json"))
