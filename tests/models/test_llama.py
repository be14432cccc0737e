from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.config.model import ConfigReader
from octavo.contracts.kv_spec import FullAttentionSpec
from octavo.contracts.tensor import DType
from octavo.errors import ConfigError, UnsupportedModelError
from octavo.models.llama import LlamaForCausalLM
from octavo.models.registry import build_model
from tests.kernels.backends import BACKENDS, DTYPES, make_backend
from tests.models.hf import HFModel
from tests.models.oracle import (
    assert_bfloat16_stays_near_float32,
    assert_equals_transformers,
    prompt_of,
)
from tests.models.runner import Runner
from tests.ropes import LLAMA3, YARN

SHAPES: dict[str, dict[str, Any]] = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "mqa": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "attention-bias": {"attention_bias": True},
    "mlp-bias": {"mlp_bias": True},
    "wide-heads": {"head_dim": 32},
    "narrow-heads": {"head_dim": 10, "num_key_value_heads": 1},
    "odd-sizes": {
        "hidden_size": 60,
        "intermediate_size": 97,
        "vocab_size": 131,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
    },
    "gelu": {"hidden_act": "gelu"},
    "gelu-tanh": {"hidden_act": "gelu_pytorch_tanh"},
    "eps": {"rms_norm_eps": 0.1},
    "all": {
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
        "head_dim": 24,
        "num_hidden_layers": 3,
    },
}

_FACTORS = {"short_factor": [1.0 + 0.2 * i for i in range(8)], "long_factor": [4.0] * 8}
ROPES: dict[str, dict[str, Any]] = {
    "theta": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 8.0,
        "mscale": 0.7,
        "mscale_all_dim": 0.3,
        "truncate": False,
        "original_max_position_embeddings": 32,
    },
    # Every text here is longer (or shorter) than the original length: transformers decides by text,
    # we by max_model_len.
    "longrope-long": {
        "rope_type": "longrope",
        "original_max_position_embeddings": 16,
        **_FACTORS,
    },
    "longrope-short": {
        "rope_type": "longrope",
        "original_max_position_embeddings": 256,
        "factor": 4.0,
        **_FACTORS,
    },
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_transformers(shape: str, backend: str) -> None:
    assert_equals_transformers("LlamaForCausalLM", backend, **SHAPES[shape])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rope", ROPES)
def test_rope_equals_transformers(rope: str, backend: str) -> None:
    parameters = {"rope_theta": 100.0, **ROPES[rope]}
    assert_equals_transformers("LlamaForCausalLM", backend, rope_parameters=parameters)


@pytest.mark.parametrize("backend", BACKENDS)
def test_long_prompt_equals_transformers(backend: str) -> None:
    """Over more than 256 tokens, in chunks that end anywhere."""
    assert_equals_transformers(
        "LlamaForCausalLM",
        backend,
        prompt=prompt_of(250),
        chunks=[60, 1, 64, 33, 2, 64],
        max_model_len=320,
        max_position_embeddings=320,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.value)
def test_chunks_do_not_change_a_bit(dtype: DType, backend: str) -> None:
    hf = HFModel("LlamaForCausalLM", num_key_value_heads=1)
    prompt = prompt_of(41)
    results = []
    for chunks in ([41], [1] * 41, [16, 16], [7, 30]):
        runner = Runner(
            build_model(hf.reader), hf.weights(), make_backend(backend, dtype, 1), max_model_len=64
        )
        results.append(runner.greedy(prompt, 20, chunks))
    for ids, logprobs in results[1:]:
        assert ids == results[0][0]
        assert np.array_equal(logprobs, results[0][1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16_stays_near_float32(backend: str) -> None:
    assert_bfloat16_stays_near_float32("LlamaForCausalLM", backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tied", [True, False])
def test_stages_of_a_pipeline_equal_the_whole(tied: bool, backend: str) -> None:
    hf = HFModel("LlamaForCausalLM", num_hidden_layers=3, tie_word_embeddings=tied)
    prompt = prompt_of(20)

    def runner(layers: range | None) -> Runner:
        model = build_model(hf.reader, layers)
        assert model.num_layers == len(layers or range(3))
        return Runner(model, hf.weights(), make_backend(backend, DType.F32, 1), max_model_len=64)

    whole = runner(None).step(prompt)["logits"]
    x: dict[str, np.ndarray] = {}
    for layers in (range(1), range(1, 2), range(2, 3)):
        x = runner(layers).step(prompt, extra=x)
    assert np.array_equal(x["logits"], whole)


@pytest.mark.parametrize("layers", [range(0), range(2, 2), range(1, 4), range(0, 3, 2)])
def test_wrong_stages_are_refused(layers: range) -> None:
    with pytest.raises(ConfigError, match="layers"):
        build_model(ConfigReader(CONFIG, "config.json"), layers)


CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}


def test_defaults_of_old_configurations() -> None:
    model = LlamaForCausalLM.from_config(ConfigReader(CONFIG, "config.json"))
    assert (model.vocab_size, model.max_position, model.num_layers) == (100, 128, 3)
    spec = FullAttentionSpec(num_kv_heads=4, head_size=8, head_size_v=8, dtype=DType.BF16)
    assert model.kv_specs(DType.BF16) == {f"model.layers.{i}.self_attn": spec for i in range(3)}
    names = [name for slot in model.slots() for name in slot.expected()]
    assert names[:2] == ["model.embed_tokens.weight", "model.layers.0.input_layernorm.weight"]
    assert names[-2:] == ["model.norm.weight", "lm_head.weight"]
    assert not [n for n in names if n.endswith("bias")]


def test_scaled_rope_reaches_further() -> None:
    values = CONFIG | {"rope_scaling": {"type": "linear", "factor": 4.0}}
    assert build_model(ConfigReader(values, "config.json")).max_position == 512
    values = CONFIG | {"rope_scaling": {"type": "linear", "factor": 1e12}}
    assert build_model(ConfigReader(values, "config.json")).max_position == 2**31 - 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "relu2"}, "hidden_act='relu2' is not supported; supported: silu, gelu"),
        ({"rope_scaling": {"rope_type": "warp"}}, "supported: default, linear, dynamic, llama3"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "32"}, "hidden_size='32' must be"),
        ({"vocab_size": 0}, "vocab_size=0 must be in 1…"),
        ({"vocab_size": 10**30}, "must be in 1…"),
        ({"num_hidden_layers": 5000}, "must be in 1…4096"),
        ({"num_key_value_heads": 3}, "must be a multiple of num_key_value_heads=3"),
        ({"hidden_size": 30}, "must be a multiple of num_attention_heads=4"),
        ({"num_attention_heads": 0}, "num_attention_heads=0"),
        ({"head_dim": 7}, "must be even"),
        ({"rms_norm_eps": -1.0}, "must not be negative"),
        ({"rms_norm_eps": float("nan")}, "must be a finite number"),
        ({"tie_word_embeddings": "yes"}, "must be true or false"),
    ],
)
def test_wrong_configurations_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"config\.json") as caught:
        build_model(ConfigReader(CONFIG | change, "config.json"))
    assert message in str(caught.value)
