from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.config.model import ConfigReader
from octavo.errors import UnsupportedModelError, WeightsError
from octavo.layers.rope import read_rope
from octavo.models.gguf import GGUFFile
from octavo.models.gguf_config import gguf_config, gguf_generation_config
from tests.models.gguf_lab import (
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    VOCAB,
    llama_metadata,
    llama_tensors,
    write_gguf,
)
from tests.ropes import LLAMA3


def config_of(tmp_path: Path, tensors: Any = None, **metadata: Any) -> dict[str, Any]:
    values = llama_metadata() | {k.replace("__", "."): v for k, v in metadata.items()}
    values = {k: v for k, v in values.items() if v is not None}
    return gguf_config(GGUFFile(write_gguf(tmp_path / "m.gguf", tensors, values)))


def test_llama(tmp_path: Path) -> None:
    assert config_of(tmp_path) == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "head_dim": HEAD_DIM,
    }


def test_what_may_be_absent(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        llama__attention__head_count_kv=None,
        llama__rope__freq_base=None,
        llama__rope__dimension_count=None,
    )
    assert config["num_key_value_heads"] == HEADS
    assert config["rope_theta"] == 10000.0
    assert config["head_dim"] == HEAD_DIM


def test_untied_head_and_biases_are_seen_in_the_tensors(tmp_path: Path) -> None:
    tensors = llama_tensors()
    tensors["output.weight"] = tensors["token_embd.weight"]
    tensors["blk.0.attn_q.bias"] = (np.zeros(HIDDEN, np.float32), "F32")
    config = config_of(tmp_path, tensors)
    assert not config["tie_word_embeddings"]
    assert config["attention_bias"]


def test_a_window_makes_it_mistral(tmp_path: Path) -> None:
    config = config_of(tmp_path, llama__attention__sliding_window=32)
    assert config["architectures"] == ["MistralForCausalLM"]
    assert config["sliding_window"] == 32


def test_heads_of_another_size_and_partial_rotation(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        llama__attention__key_length=32,
        llama__attention__value_length=32,
        llama__rope__dimension_count=8,
    )
    assert config["head_dim"] == 32
    assert config["partial_rotary_factor"] == 0.25


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama__block_count": None}, "llama.block_count is missing"),
        ({"llama__context_length": "long"}, "llama.context_length='long' must be"),
        ({"llama__attention__head_count": [4, 4]}, "must be a non-negative integer"),
        ({"llama__expert_count": 8}, "mixtures of experts"),
        ({"llama__attention__key_length": 16, "llama__attention__value_length": 8}, "differ"),
        ({"llama__rope__scaling__type": "weird"}, "none, linear, yarn"),
        ({"split__count": 3}, "merge"),
        ({"llama__attention__head_count": 0, "llama__rope__dimension_count": None}, "0 heads"),
    ],
)
def test_what_cannot_be_read_is_an_error(
    metadata: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        config_of(tmp_path, **metadata)


def test_unknown_architecture_lists_the_known(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", architecture="llama9")
    with pytest.raises(UnsupportedModelError, match="'llama9' is not supported; supported: gem"):
        gguf_config(GGUFFile(path))


def test_more_layers_than_tensors(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="block_count=2000000000"):
        config_of(tmp_path, llama__block_count=2_000_000_000)


def test_no_embedding(tmp_path: Path) -> None:
    tensors = llama_tensors()
    del tensors["token_embd.weight"]
    with pytest.raises(WeightsError, match=r"token_embd\.weight is missing"):
        config_of(tmp_path, tensors)


def test_generation_config_has_the_sampling_that_the_author_recommends(tmp_path: Path) -> None:
    names = {"temp": 0.7, "top_p": 0.8, "min_p": 0.05, "penalty_repeat": 1.05, "top_k": 20}
    sampling = {f"general.sampling.{name}": value for name, value in names.items()}
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", metadata=llama_metadata(**sampling)))
    assert gguf_generation_config(file) == {
        "temperature": 0.7,
        "top_p": 0.8,
        "min_p": 0.05,
        "repetition_penalty": 1.05,
        "top_k": 20,
    }
    off = llama_metadata(**{"general.sampling.top_k": -1.0})
    file = GGUFFile(write_gguf(tmp_path / "off.gguf", metadata=off))
    assert gguf_generation_config(file) == {"top_k": 0}


def test_generation_config_has_all_ends_once(tmp_path: Path) -> None:
    ids = {"bos": 1, "eos": 2, "eot": 7, "eom": 2}
    metadata = llama_metadata(**{f"tokenizer.ggml.{k}_token_id": v for k, v in ids.items()})
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", metadata=metadata))
    assert gguf_generation_config(file) == {"bos_token_id": 1, "eos_token_id": [2, 7]}
    bare = GGUFFile(write_gguf(tmp_path / "bare.gguf"))
    assert gguf_generation_config(bare) == {}


# ---------------------------------------------------------------- rope scaling


def inv_freq(config: dict[str, Any]) -> np.ndarray:
    rope = read_rope(ConfigReader(config, "c"), head_dim=HEAD_DIM, max_position=128)
    return rope.scaling.inv_freq(rope.theta, rope.rotary_dim, 128)


def with_freqs(values: np.ndarray) -> dict[str, Any]:
    return llama_tensors() | {"rope_freqs.weight": (values.astype(np.float32), "F32")}


def test_llama3_scaling_is_read_back_from_its_divisors(tmp_path: Path) -> None:
    plain = config_of(tmp_path)
    expected = inv_freq(plain | {"rope_scaling": LLAMA3})
    divisors = inv_freq(plain) / expected  # what llama.cpp's conversion stores
    assert divisors.min() == 1
    assert divisors.max() == 8
    config = config_of(tmp_path, with_freqs(divisors))
    assert np.allclose(inv_freq(config), expected, rtol=1e-6)
    rope = read_rope(ConfigReader(config, "c"), head_dim=HEAD_DIM, max_position=128)
    assert rope.scaling.magnitude == 1.0
    assert rope.scaling.extended(128) == 128


def test_divisors_that_are_all_one_change_nothing(tmp_path: Path) -> None:
    config = config_of(tmp_path, with_freqs(np.ones(HEAD_DIM // 2)))
    assert config == config_of(tmp_path)


@pytest.mark.parametrize(
    "values",
    [10000.0 ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM), np.zeros(8), np.full(8, np.nan)],
)
def test_what_is_no_divisor_is_ignored_with_a_warning(
    values: np.ndarray, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = config_of(tmp_path)
    with caplog.at_level(logging.WARNING, logger="octavo"):
        assert config_of(tmp_path, with_freqs(values)) == plain
    assert "rope_freqs.weight" in caplog.text


def test_linear_and_yarn_scaling(tmp_path: Path) -> None:
    linear = config_of(
        tmp_path, llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0
    )
    assert linear["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    yarn = config_of(
        tmp_path,
        llama__rope__scaling__type="yarn",
        llama__rope__scaling__factor=4.0,
        llama__rope__scaling__original_context_length=32,
    )
    assert yarn["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    assert inv_freq(yarn).shape == (HEAD_DIM // 2,)
