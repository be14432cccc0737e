"""What values of `general.architecture` stand for: an entry of `ARCHITECTURES` each.

What files do not store is as in llama.cpp (src/models/*.cpp, `load_arch_hparams`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.config.model import ConfigReader


@dataclass(frozen=True, kw_only=True)
class GGUFArchitecture:
    """How a file of one architecture is read.

    Attributes:
        family: from the metadata, the keys of config.json that are this architecture's own; one
            GGUF architecture may serve several classes.
        permuted_qk: rows of q and k are in llama.cpp's order (gguf_names.unpermute_rows).
        norm_offset: what the file's norms hold on top of the checkpoint's.
        block_names: of tensors in a block, where they are not Llama's (gguf_names).
    """

    family: Callable[[ConfigReader], dict[str, Any]]
    permuted_qk: bool = False
    norm_offset: float = 0.0
    block_names: Mapping[str, str] = field(default_factory=dict)


def read_float32(metadata: ConfigReader, key: str, *default: float) -> float:
    """A number as its author wrote it: 1e-05, not the float32's 9.999999747378752e-06."""
    return float(str(np.float32(metadata.float(key, *default))))


_SILU = {"hidden_act": "silu"}


def _llama(metadata: ConfigReader) -> dict[str, Any]:
    if metadata.int("llama.expert_count", 0):
        raise metadata.unsupported("mixtures of experts (llama.expert_count) are not supported")
    window = metadata.int("llama.attention.sliding_window", None)
    if window is None:
        return _SILU | _named("LlamaForCausalLM", "llama")
    return _SILU | _named("MistralForCausalLM", "mistral") | {"sliding_window": window}


def _qwen2(metadata: ConfigReader) -> dict[str, Any]:
    return _SILU | _named("Qwen2ForCausalLM", "qwen2")


def _qwen3(metadata: ConfigReader) -> dict[str, Any]:
    return _SILU | _named("Qwen3ForCausalLM", "qwen3")


def _phi3(metadata: ConfigReader) -> dict[str, Any]:
    window = metadata.int("phi3.attention.sliding_window", 0)
    return _SILU | _named("Phi3ForCausalLM", "phi3") | {"sliding_window": window or None}


def _gemma2(metadata: ConfigReader) -> dict[str, Any]:
    return _gemma(metadata, "gemma2", layers_of_27b=46) | {
        **_named("Gemma2ForCausalLM", "gemma2"),
        "sliding_window": metadata.int("gemma2.attention.sliding_window", 4096),
        "attn_logit_softcapping": read_float32(metadata, "gemma2.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": read_float32(metadata, "gemma2.final_logit_softcapping", 30.0),
    }


def _gemma3(metadata: ConfigReader) -> dict[str, Any]:
    window = metadata.int("gemma3.attention.sliding_window", 0)
    pattern = metadata.int("gemma3.attention.sliding_window_pattern", 6) if window else 1
    config = _gemma(metadata, "gemma3", layers_of_27b=62) | {
        **_named("Gemma3ForCausalLM", "gemma3_text"),
        "rope_local_base_freq": read_float32(metadata, "gemma3.rope.freq_base_swa", 10000.0),
        "sliding_window": window or None,
        "sliding_window_pattern": pattern,
    }
    if (soft_cap := "gemma3.final_logit_softcapping") in metadata:
        config["final_logit_softcapping"] = read_float32(metadata, soft_cap)
    return config


def _gemma(metadata: ConfigReader, prefix: str, *, layers_of_27b: int) -> dict[str, Any]:
    """Scores are scaled by the size of a head, but in the 27B models by the share of a head."""
    scalar = metadata.int(f"{prefix}.attention.key_length")
    if metadata.int(f"{prefix}.block_count") == layers_of_27b:
        heads = metadata.int(f"{prefix}.attention.head_count")
        scalar = metadata.int(f"{prefix}.embedding_length") // max(heads, 1)
    return {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scalar}


def _named(architecture: str, model_type: str) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type}


_GEMMA_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PHI3_NAMES = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}

ARCHITECTURES: Mapping[str, GGUFArchitecture] = {
    "gemma2": GGUFArchitecture(family=_gemma2, norm_offset=1.0, block_names=_GEMMA_NAMES),
    "gemma3": GGUFArchitecture(family=_gemma3, norm_offset=1.0, block_names=_GEMMA_NAMES),
    "llama": GGUFArchitecture(family=_llama, permuted_qk=True),
    "phi3": GGUFArchitecture(family=_phi3, block_names=_PHI3_NAMES),
    "qwen2": GGUFArchitecture(family=_qwen2),
    "qwen3": GGUFArchitecture(family=_qwen3),
}
"""By general.architecture."""
