"""Qwen 2 and 2.5, Qwen 3 (dense).

Yang et al., *Qwen2 Technical Report*, 2024; *Qwen3 Technical Report*, 2025.
"""

from __future__ import annotations

from dataclasses import replace

from octavo.config.model import ConfigReader
from octavo.models.llama import LlamaConfig, LlamaForCausalLM
from octavo.models.reading import read_layer_types


def _read(config: ConfigReader) -> LlamaConfig:
    """With `use_sliding_window`, layers from `max_window_layers` on have the window."""
    first = None
    if config.bool("use_sliding_window", False):
        first = config.int("max_window_layers")
    layer_types = read_layer_types(config, lambda i: first is not None and i >= first)
    return LlamaConfig.read(config, layer_types=layer_types)


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Llama, with biases of q, k and v."""

    @classmethod
    def read_config(cls, config: ConfigReader) -> LlamaConfig:
        return replace(_read(config), qkv_bias=True, o_bias=False)


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Llama, with norms over each head of q and k."""

    @classmethod
    def read_config(cls, config: ConfigReader) -> LlamaConfig:
        return replace(_read(config.with_defaults({"head_dim": 128})), qk_norm=True)
