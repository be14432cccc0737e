from __future__ import annotations

from typing import Any

import pytest

from octavo.config.model import ConfigReader
from octavo.errors import UnsupportedModelError
from octavo.models.registry import build_model
from tests.kernels.backends import BACKENDS
from tests.models.hf import HFModel
from tests.models.oracle import assert_equals_transformers
from tests.models.test_llama import CONFIG

FACTORS = {"short_factor": [1.0, 1.1, 1.3, 1.6], "long_factor": [1.5, 2.0, 4.0, 6.0]}


def longrope(original: int) -> dict[str, Any]:
    """Over half of each head. Texts have 87 tokens: all of them count as long, or none."""
    rope = {"rope_type": "longrope", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
    return {"rope_parameters": rope | FACTORS, "original_max_position_embeddings": original}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sliding_window": 13, "num_key_value_heads": 1},
        {"rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5}},
        {"tie_word_embeddings": True, "sliding_window": 256, **longrope(16)},
        {"max_position_embeddings": 512, **longrope(256)},
    ],
    ids=["plain", "window", "partial-rope", "longrope-long", "longrope-short"],
)
def test_equals_transformers(options: dict[str, Any], backend: str) -> None:
    assert_equals_transformers("Phi3ForCausalLM", backend, **options)


def test_su_is_longrope() -> None:
    """Its name in the first configurations, which say what is before `rope_parameters`."""
    model = HFModel("Phi3ForCausalLM", **longrope(16))
    values = model.config.to_dict() | {
        "rope_scaling": {"type": "su", **FACTORS},
        "rope_theta": 100.0,
        "partial_rotary_factor": 0.5,
    }
    del values["rope_parameters"]
    old = build_model(ConfigReader(values, "config.json"))
    assert old._config == build_model(model.reader)._config  # type: ignore[attr-defined]


def test_other_ropes_are_refused() -> None:
    """What the first Phi-3 configurations call "yarn" is another thing than in other families."""
    rope = {"type": "yarn", "factor": 4.0}
    values = CONFIG | {"architectures": ["Phi3ForCausalLM"], "rope_scaling": rope}
    with pytest.raises(UnsupportedModelError, match="default, longrope or su"):
        build_model(ConfigReader(values, "config.json"))
