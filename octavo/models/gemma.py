"""Gemma 2 and Gemma 3 (text).

Gemma Team, *Gemma 2: Improving Open Language Models at a Practical Size*, 2024; *Gemma 3 Technical
Report*, 2025.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from octavo.config.model import ConfigReader
from octavo.kernels.ops import Ops, Value
from octavo.models.llama import LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM, rms_norm
from octavo.models.reading import read_layer_types, read_size

_DEFAULTS: dict[str, Any] = {
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_GEMMA2_DEFAULTS = _DEFAULTS | {
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "max_position_embeddings": 8192,
    "vocab_size": 256000,
}
_GEMMA3_DEFAULTS = _DEFAULTS | {
    "max_position_embeddings": 131072,
    "rope_local_base_freq": 10000.0,
    "rope_theta": 1000000.0,
    "sliding_window_pattern": 6,
    "vocab_size": 262208,
}
"""Of transformers' configuration classes: published configurations leave keys out."""


class GemmaDecoderLayer(LlamaDecoderLayer):
    """Attention and MLP between two norms each, then added to the residual."""

    def __init__(self, config: LlamaConfig, index: int) -> None:
        super().__init__(config, index)
        name = f"model.layers.{index}"
        self.pre_feedforward_layernorm = rms_norm(config, f"{name}.pre_feedforward_layernorm")
        self.post_feedforward_layernorm = rms_norm(config, f"{name}.post_feedforward_layernorm")

    def __call__(self, ops: Ops, x: Value) -> Value:
        y = self.self_attn(ops, self.input_layernorm(ops, x))
        x = self.post_attention_layernorm.add(ops, y, x)
        y = self.mlp(ops, self.pre_feedforward_layernorm(ops, x))
        return self.post_feedforward_layernorm.add(ops, y, x)


def _read(config: ConfigReader, full_attention_every: int) -> LlamaConfig:
    if config.bool("use_bidirectional_attention", False):
        raise config.unsupported("use_bidirectional_attention is not supported: no generation")
    layer_types = read_layer_types(config, lambda i: (i + 1) % full_attention_every != 0)
    read = LlamaConfig.read(config, layer_types=layer_types, activation="hidden_activation")
    return replace(
        read,
        norm_offset=1.0,
        attention_scale=config.positive("query_pre_attn_scalar") ** -0.5,
        logits_soft_cap=config.positive("final_logit_softcapping", None),
        # Float32 with every dtype, as is the residual stream that it scales: see docs/models.md.
        embedding_scale=float(np.float32(read.hidden_size**0.5)),
    )


class Gemma2ForCausalLM(LlamaForCausalLM):
    """Every second layer sees a window; soft caps on scores and logits."""

    decoder_layer = GemmaDecoderLayer

    @classmethod
    def read_config(cls, config: ConfigReader) -> LlamaConfig:
        config = config.with_defaults(_GEMMA2_DEFAULTS)
        soft_cap = config.positive("attn_logit_softcapping", None)
        return replace(_read(config, 2), attention_soft_cap=soft_cap)


class Gemma3ForCausalLM(LlamaForCausalLM):
    """Five of six layers see a window, with a rope of their own; norms over heads of q and k."""

    decoder_layer = GemmaDecoderLayer

    @classmethod
    def read_config(cls, config: ConfigReader) -> LlamaConfig:
        config = config.with_defaults(_GEMMA3_DEFAULTS)
        if "attn_logit_softcapping" in config:
            raise config.unsupported("attn_logit_softcapping is not supported with Gemma 3")
        read = _read(config, read_size(config, "sliding_window_pattern"))
        # Its length counts the scaling of rope in.
        max_position = read_size(config, "max_position_embeddings")
        return replace(read, qk_norm=True, max_position=max_position)


class Gemma3ForConditionalGeneration(Gemma3ForCausalLM):
    """The text part of a model that also sees: its images are not supported, its tensors for them
    ignored."""

    @classmethod
    def read_config(cls, config: ConfigReader) -> LlamaConfig:
        text = config.section("text_config")
        if text is None:
            raise config.unsupported("text_config is missing")
        return super().read_config(text)

    def slot_name(self, name: str) -> str:
        """Checkpoints of transformers 4 have language_model.model.…, those of 5
        model.language_model.…"""
        name = re.sub(r"^(language_model\.model|model\.language_model)\.", "model.", name)
        return name.removeprefix("language_model.")

    def ignored(self, names: Iterable[str]) -> set[str]:
        names = list(names)
        vision = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")
        return super().ignored(names) | {name for name in names if vision.match(name)}
