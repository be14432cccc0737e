from __future__ import annotations

from typing import Any

import pytest

from octavo.config.model import ConfigReader
from octavo.contracts.kv_spec import SlidingWindowSpec
from octavo.contracts.tensor import DType
from octavo.errors import UnsupportedModelError
from octavo.models.registry import build_model
from tests.kernels.backends import BACKENDS
from tests.models.oracle import assert_equals_transformers
from tests.models.test_llama import CONFIG
from tests.ropes import YARN

WINDOW = {"use_sliding_window": True, "sliding_window": 21}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_key_value_heads": 1, "tie_word_embeddings": True},
        {"rope_parameters": {"rope_theta": 100.0, **YARN}},
        {**WINDOW, "max_window_layers": 1},
        {**WINDOW, "max_window_layers": 0},
        {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    ],
    ids=["plain", "mqa-tied", "yarn", "window-after-1", "window", "layer-types"],
)
def test_qwen2_equals_transformers(options: dict[str, Any], backend: str) -> None:
    assert_equals_transformers("Qwen2ForCausalLM", backend, **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "options",
    [
        {"head_dim": 24},
        {"head_dim": 16, "num_key_value_heads": 1, "tie_word_embeddings": True},
        {"head_dim": 32, "attention_bias": True, "rms_norm_eps": 0.1},
        {"head_dim": 24, **WINDOW, "max_window_layers": 1},
    ],
    ids=["plain", "mqa-tied", "bias-eps", "window-after-1"],
)
def test_qwen3_equals_transformers(options: dict[str, Any], backend: str) -> None:
    assert_equals_transformers("Qwen3ForCausalLM", backend, **options)


QWEN2 = CONFIG | {"architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 4}


def windows(**values: Any) -> list[int | None]:
    model = build_model(ConfigReader(QWEN2 | values, "config.json"))
    specs = model.kv_specs(DType.F32).values()
    return [s.sliding_window if isinstance(s, SlidingWindowSpec) else None for s in specs]


def test_the_window_counts_only_where_it_is_used() -> None:
    published = {"sliding_window": 32, "max_window_layers": 3}
    assert windows(**published, use_sliding_window=False) == [None] * 4
    assert windows(**published) == [None] * 4
    assert windows(**published, use_sliding_window=True) == [None, None, None, 32]
    assert windows(use_sliding_window=False, sliding_window=None) == [None] * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_sliding_window": True, "sliding_window": 4}, "max_window_layers is missing"),
        ({"use_sliding_window": True, "max_window_layers": 0}, "sliding_window is missing"),
        ({"layer_types": ["full_attention"]}, "layer_types must be 4 entries"),
        ({"layer_types": ["linear_attention"] * 4}, "'full_attention' or 'sliding_attention'"),
        ({"layer_types": [[]] * 4}, "layer_types must be 4 entries"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window is missing"),
        ({"layer_types": ["sliding_attention"] * 4, "sliding_window": 0}, "sliding_window=0"),
    ],
)
def test_wrong_configurations_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        windows(**change)
