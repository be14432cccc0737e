from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from octavo.config.model import ConfigReader
from octavo.errors import UnsupportedModelError
from octavo.layers.rope import ROPE_TYPES, RopeParameters, read_rope
from tests.ropes import LLAMA3, YARN

HEAD_DIM, MAX_POSITION = 32, 256
FACTORS = {
    "short_factor": [1.0 + 0.1 * i for i in range(16)],
    "long_factor": [2.0 + 0.5 * i for i in range(16)],
}

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn-untruncated": {
        "rope_type": "yarn",
        "factor": 40.0,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 16.0,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
        "original_max_position_embeddings": 32,
    },
    "yarn-attention": {
        "rope_type": "yarn",
        "factor": 4.0,
        "attention_factor": 1.3,
        "original_max_position_embeddings": 64,
    },
    "longrope": {"rope_type": "longrope", "original_max_position_embeddings": 64, **FACTORS},
    "longrope-factor": {
        "rope_type": "longrope",
        "factor": 6.0,
        "original_max_position_embeddings": 64,
        **FACTORS,
    },
    "longrope-attention": {
        "rope_type": "longrope",
        "attention_factor": 1.1,
        "original_max_position_embeddings": 64,
        **FACTORS,
    },
}


def read(values: dict[str, Any], **options: Any) -> RopeParameters:
    options = {"head_dim": HEAD_DIM, "max_position": MAX_POSITION} | options
    return read_rope(ConfigReader(values, "config.json"), **options)


def hf_config(rope: dict[str, Any], theta: float = 5000.0) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=MAX_POSITION,
        rope_parameters={"rope_theta": theta, **rope},
    )


@pytest.mark.parametrize("length", [40, 200, 600])
@pytest.mark.parametrize("name", SCALINGS)
def test_equals_transformers(name: str, length: int) -> None:
    """Frequencies and magnitude as for a text of `max_model_len` tokens."""
    config = hf_config(SCALINGS[name])
    kind = SCALINGS[name]["rope_type"]
    compute = ROPE_INIT_FUNCTIONS.get(kind, LlamaRotaryEmbedding.compute_default_rope_parameters)
    inv_freq, magnitude = compute(config, device=torch.device("cpu"), seq_len=length)
    rope = read({"rope_parameters": {"rope_theta": 5000.0, **SCALINGS[name]}})
    got = rope.scaling.inv_freq(rope.theta, rope.rotary_dim, length)
    np.testing.assert_allclose(got, inv_freq.numpy(), rtol=3e-6)
    assert rope.scaling.magnitude == pytest.approx(magnitude, rel=1e-12)


@pytest.mark.parametrize("name", SCALINGS)
def test_both_styles_of_configuration_read_alike(name: str) -> None:
    new = read({"rope_parameters": {"rope_theta": 5000.0, **SCALINGS[name]}})
    assert read({"rope_theta": 5000.0, "rope_scaling": SCALINGS[name]}) == new
    old = {**SCALINGS[name], "type": SCALINGS[name]["rope_type"]}
    del old["rope_type"]
    assert read({"rope_theta": 5000, "rope_scaling": old}) == new
    assert hash(new) == hash(read({"rope_theta": 5000.0, "rope_scaling": SCALINGS[name]}))


def test_every_type_is_tested() -> None:
    assert {s["rope_type"] for s in SCALINGS.values()} | {"su"} == ROPE_TYPES.keys()


def test_tables_are_float64_rounded_once() -> None:
    rope = read({"rope_parameters": SCALINGS["yarn"]})
    cos, sin = rope.tables(100)
    assert cos.shape == sin.shape == (100, 16)
    assert cos.dtype == sin.dtype == np.float32
    inv_freq = rope.scaling.inv_freq(10000.0, 32, 100)
    for position in (0, 1, 99):
        for i in (0, 7, 15):
            angle = position * float(inv_freq[i])
            assert cos[position, i] == np.float32(math.cos(angle) * rope.scaling.magnitude)
            assert sin[position, i] == np.float32(math.sin(angle) * rope.scaling.magnitude)


def test_defaults_without_any_section() -> None:
    rope = read({})
    assert (rope.rotary_dim, rope.theta, rope.interleaved) == (32, 10000.0, False)
    assert read({"rope_scaling": None, "rope_parameters": None}) == rope


def test_lengths_reached() -> None:
    reached = {
        name: read({"rope_parameters": s}).scaling.extended(MAX_POSITION)
        for name, s in SCALINGS.items()
    }
    assert reached["default"] == reached["llama3"] == reached["longrope"] == MAX_POSITION
    assert reached["linear"] == 4 * MAX_POSITION
    assert reached["dynamic"] == 2 * MAX_POSITION
    assert reached["yarn"] == 4 * 64


def test_dynamic_is_plain_within_the_original_length() -> None:
    plain, dynamic = read({}), read({"rope_parameters": SCALINGS["dynamic"]})
    assert np.array_equal(dynamic.tables(MAX_POSITION)[0], plain.tables(MAX_POSITION)[0])
    assert not np.array_equal(dynamic.tables(MAX_POSITION + 1)[0][:9], plain.tables(9)[0])


def test_original_length_beside_the_section_comes_first() -> None:
    """Phi-3's place for it."""
    section = {**SCALINGS["longrope"], "original_max_position_embeddings": 7}
    beside = read({"rope_scaling": section, "original_max_position_embeddings": 64})
    assert beside == read({"rope_scaling": SCALINGS["longrope"]})


def test_partial_rotary() -> None:
    beside = read({"partial_rotary_factor": 0.5, "rope_scaling": SCALINGS["linear"]})
    within = read({"rope_parameters": {**SCALINGS["linear"], "partial_rotary_factor": 0.5}})
    assert beside == within
    assert beside.rotary_dim == 16
    assert beside.tables(8)[0].shape == (8, 8)


def test_a_section_per_kind_of_layer() -> None:
    values = {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    }
    full, sliding = (read(values, layer_type=f"{kind}_attention") for kind in ("full", "sliding"))
    assert (full.theta, sliding.theta) == (1e6, 1e4)
    assert full.scaling != sliding.scaling
    assert read({"rope_theta": 3e4}, layer_type="full_attention").theta == 3e4
    before = {
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    assert read(before, layer_type="full_attention") == full
    assert read(before, layer_type="sliding_attention") == sliding
    with pytest.raises(UnsupportedModelError, match="out of range"):
        read(before | {"rope_local_base_freq": 0}, layer_type="sliding_attention")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"rope_type": "magic"}, "rope_type='magic' is not supported; supported: default, linear"),
        ({"type": ["yarn"]}, "not supported"),
        ({"rope_type": "linear"}, "factor is missing"),
        ({"rope_type": "linear", "factor": 0}, "factor=0.0 must be above 0"),
        ({"rope_type": "linear", "factor": 1e300}, "at most"),
        ({"rope_type": "linear", "factor": "2"}, "must be a finite number"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}, "high_freq_factor"),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
            "must be above",
        ),
        ({**SCALINGS["yarn"], "original_max_position_embeddings": 0}, "must be above 0"),
        ({**SCALINGS["yarn"], "mscale": -1.0}, "must not be negative"),
        ({**SCALINGS["longrope"], "long_factor": [1.0]}, "must have 16 entries"),
        ({**SCALINGS["longrope"], "short_factor": ["x"] * 16}, "must be numbers"),
        ({"rope_theta": 1.0}, "out of range"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 0.0}, "out of range"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 0.1}, "must be even"),
    ],
)
def test_what_is_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"config\.json") as caught:
        read({"rope_parameters": section})
    assert message in str(caught.value)
