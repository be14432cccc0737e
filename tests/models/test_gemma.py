from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from octavo.config.model import ConfigReader
from octavo.contracts.kv_spec import SlidingWindowSpec
from octavo.contracts.tensor import DType, HostTensor
from octavo.errors import UnsupportedModelError, WeightsError
from octavo.models.loader import load_weights
from octavo.models.registry import build_model
from tests.kernels.backends import BACKENDS, make_backend
from tests.models.hf import TINY, HFModel
from tests.models.oracle import (
    assert_bfloat16_stays_near_float32,
    assert_equals_transformers,
)

SLIDING, FULL = "sliding_attention", "full_attention"
SHAPE: dict[str, Any] = {
    "head_dim": 16,
    "query_pre_attn_scalar": 9,
    "num_hidden_layers": 3,
    "sliding_window": 12,
    "tie_word_embeddings": False,
}
# A tied head sees the scaled embedding in the residual: small weights keep a tiny model from
# repeating its last token.
TIED = {
    "hidden_size": 32,
    "num_hidden_layers": 6,
    "tie_word_embeddings": True,
    "initializer_range": 0.03,
}
ROPES = {
    FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
    SLIDING: {"rope_type": "default", "rope_theta": 100.0},
}
GEMMA2: dict[str, dict[str, Any]] = {
    "plain": {"sliding_window": 21},
    "caps": {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 6.0},
    "no-caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "layer-types": {"sliding_window": 7, "layer_types": [FULL, FULL, SLIDING]},
    "tied": TIED,
    "shape": {"head_dim": 24, "num_key_value_heads": 1, "rope_parameters": ROPES[SLIDING]},
    "options": {"attention_bias": True, "rms_norm_eps": 0.05, "hidden_activation": "silu"},
}
GEMMA3: dict[str, dict[str, Any]] = {
    "plain": {"sliding_window": 21, "num_hidden_layers": 6},
    "ropes": {"layer_types": [SLIDING, FULL, SLIDING], "rope_parameters": ROPES},
    "pattern": {"sliding_window_pattern": 2},
    "cap": {"final_logit_softcapping": 6.0},
    "tied": TIED,
    "shape": {"head_dim": 24, "num_key_value_heads": 1},
    "options": {"attention_bias": True, "rms_norm_eps": 0.05, "layer_types": [FULL] * 3},
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", GEMMA2.values(), ids=GEMMA2)
def test_gemma2_equals_transformers(options: dict[str, Any], backend: str) -> None:
    assert_equals_transformers("Gemma2ForCausalLM", backend, **SHAPE | options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", GEMMA3.values(), ids=GEMMA3)
def test_gemma3_equals_transformers(options: dict[str, Any], backend: str) -> None:
    assert_equals_transformers("Gemma3ForCausalLM", backend, **SHAPE | options)


VISION = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "image_size": 28,
    "patch_size": 14,
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_text_of_a_model_that_sees(backend: str) -> None:
    assert_equals_transformers(
        "Gemma3ForConditionalGeneration",
        backend,
        text_config=TINY | SHAPE | TIED | {"rope_parameters": ROPES},
        vision_config=VISION,
        mm_tokens_per_image=4,
        tie_word_embeddings=True,
    )


@pytest.mark.parametrize("architecture", ["Gemma2ForCausalLM", "Gemma3ForCausalLM"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16_stays_near_float32(backend: str, architecture: str) -> None:
    assert_bfloat16_stays_near_float32(architecture, backend, **SHAPE, attn_logit_softcapping=None)


def published(hf: HFModel) -> dict[str, Any]:
    """As configurations before transformers 5 are, which leave defaults out."""
    values: dict[str, Any] = json.loads(hf.config.to_json_string())
    for key in ("layer_types", "rope_parameters", "final_logit_softcapping"):
        values.pop(key, None)
    return values


def test_older_configurations_say_the_same() -> None:
    ropes = ROPES | {SLIDING: {"rope_type": "default", "rope_theta": 10000.0}}
    hf = HFModel("Gemma3ForCausalLM", **SHAPE, rope_parameters=ropes)
    old = {"rope_theta": 1000.0, "rope_scaling": {"type": "linear", "factor": 8.0}}
    new = build_model(hf.reader)
    assert new.max_position == 256  # as stated: rope scaling is counted in
    for more in ({}, {"rope_local_base_freq": 10000.0, "sliding_window_pattern": 6}):
        model = build_model(ConfigReader(published(hf) | old | more, "config.json"))
        assert model._config == new._config  # type: ignore[attr-defined]

    hf = HFModel("Gemma2ForCausalLM", **SHAPE)
    model = build_model(ConfigReader(published(hf), "config.json"))
    assert model._config == build_model(hf.reader)._config  # type: ignore[attr-defined]


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_names_of_a_model_that_sees(prefix: str) -> None:
    hf = HFModel("Gemma3ForCausalLM", **SHAPE)
    text = json.loads(hf.config.to_json_string())
    values = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    head = "language_model.lm_head" if prefix.startswith("language") else "lm_head"
    weights = [
        (name.replace("model.", prefix, 1) if name.startswith("model.") else f"{head}.weight", w)
        for name, w in hf.weights()
    ]
    seeing = ("vision_tower.vision_model.x", "multi_modal_projector.y", "model.vision_tower.z")
    extra = HostTensor.of(np.zeros(1, np.float32))
    backend = make_backend("reference", DType.F32, 1)
    model = build_model(ConfigReader(values, "config.json"))
    load_weights(model, [*weights, *((name, extra) for name in seeing)], backend)
    with pytest.raises(WeightsError, match="1 unknown: audio_tower"):
        load_weights(
            build_model(ConfigReader(values, "config.json")),
            [*weights, ("audio_tower.x", extra)],
            backend,
        )


def test_one_layer_of_six_sees_everything() -> None:
    hf = HFModel("Gemma3ForCausalLM", **SHAPE | {"num_hidden_layers": 13})
    specs = build_model(hf.reader).kv_specs(DType.F32).values()
    full = [i for i, spec in enumerate(specs) if not isinstance(spec, SlidingWindowSpec)]
    assert full == [5, 11]


@pytest.mark.parametrize("architecture", ["Gemma2ForCausalLM", "Gemma3ForCausalLM"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar=0.0 must be above 0"),
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping=-1.0 must be above 0"),
        ({"attn_logit_softcapping": -1.0}, "attn_logit_softcapping"),
        ({"hidden_activation": "relu"}, "hidden_activation='relu' is not supported"),
        ({"sliding_window": 0}, "sliding_window=0"),
        ({"layer_types": [SLIDING]}, "layer_types must be 3 entries"),
    ],
)
def test_wrong_configurations_are_refused(
    architecture: str, change: dict[str, Any], message: str
) -> None:
    values = json.loads(HFModel(architecture, **SHAPE).config.to_json_string()) | change
    with pytest.raises(UnsupportedModelError, match=message):
        build_model(ConfigReader(values, "config.json"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attn_logit_softcapping": 5.0}, "attn_logit_softcapping is not supported with Gemma 3"),
        ({"sliding_window_pattern": 0, "layer_types": None}, "sliding_window_pattern=0"),
    ],
)
def test_wrong_gemma3_configurations_are_refused(change: dict[str, Any], message: str) -> None:
    values = json.loads(HFModel("Gemma3ForCausalLM", **SHAPE).config.to_json_string()) | change
    with pytest.raises(UnsupportedModelError, match=message):
        build_model(ConfigReader(values, "config.json"))


def test_a_model_that_sees_needs_its_text_config() -> None:
    values = {"architectures": ["Gemma3ForConditionalGeneration"]}
    with pytest.raises(UnsupportedModelError, match="text_config is missing"):
        build_model(ConfigReader(values, "config.json"))
