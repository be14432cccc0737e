"""Tiny random models, served by a real worker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from octavo.config.engine import EngineConfig
from octavo.config.model import ConfigReader
from octavo.contracts.tensor import DType
from octavo.models.files import ModelFiles
from octavo.models.llama import LlamaConfig, LlamaForCausalLM

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"], "sliding_window": 20}
HYBRID = {**LLAMA, "architectures": ["HybridForCausalLM"], "num_hidden_layers": 3}


class HybridForCausalLM(LlamaForCausalLM):
    """Window, full, window: three KV groups of one layer. (The registry must be told of it.)"""

    @classmethod
    def read_config(cls, config: ConfigReader) -> LlamaConfig:
        return replace(super().read_config(config), windows=(20, None, 20))


def tiny_files(
    config: dict[str, Any] = LLAMA, checkpoint_dtype: DType = DType.F32, **more: Any
) -> ModelFiles:
    """A model without weights: its configuration asks for dummy ones."""
    return ModelFiles(
        name="tiny",
        path=Path("tiny"),
        config=ConfigReader(config, "tiny"),
        raw_config=config,
        checkpoint_dtype=checkpoint_dtype,
        generation_config={},
        **more,
    )


def tiny_config(**options: Any) -> EngineConfig:
    """A small engine on the reference back end with random weights."""
    return EngineConfig.from_flat(
        **{
            "device": "reference",
            "load_format": "dummy",
            "num_threads": 1,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            **options,
        }
    )
