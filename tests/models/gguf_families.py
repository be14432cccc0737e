"""Tiny random Hugging Face models as GGUF files, written the way llama.cpp's conversion does.

Names of tensors and metadata keys are the `gguf` package's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from tests.models.hf import HFModel


def write_hf_gguf(path: Path, hf: HFModel) -> Path:
    """Write a model as float32 GGUF."""
    architecture, write_metadata = _FAMILIES[hf.config.architectures[0]]
    config = hf.config
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    write_metadata(writer, hf)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    is_gemma = architecture in (gguf.MODEL_ARCH.GEMMA2, gguf.MODEL_ARCH.GEMMA3)
    for name, tensor in hf.weights():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        offset = 1 if is_gemma and name.endswith("norm.weight") else 0
        writer.add_tensor(stored, tensor.to_float32() + offset)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _qwen2(writer: gguf.GGUFWriter, hf: HFModel) -> None:
    writer.add_rope_freq_base(hf.config.rope_parameters["rope_theta"])


def _qwen3(writer: gguf.GGUFWriter, hf: HFModel) -> None:
    _qwen2(writer, hf)
    writer.add_key_length(hf.config.head_dim)
    writer.add_value_length(hf.config.head_dim)


def _phi3(writer: gguf.GGUFWriter, hf: HFModel) -> None:
    rope, config = hf.config.rope_parameters, hf.config
    head_dim = config.hidden_size // config.num_attention_heads
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
    writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    writer.add_sliding_window(config.sliding_window or 0)
    if "long_factor" in rope:
        writer.add_rope_scaling_attn_factors(hf.model.model.rotary_emb.attention_scaling)
        for kind in ("long", "short"):
            factors = np.array(rope[f"{kind}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)


def _gemma(writer: gguf.GGUFWriter, hf: HFModel) -> None:
    writer.add_key_length(hf.config.head_dim)
    writer.add_value_length(hf.config.head_dim)
    writer.add_sliding_window(hf.config.sliding_window)
    if hf.config.final_logit_softcapping:
        writer.add_final_logit_softcapping(hf.config.final_logit_softcapping)


def _gemma2(writer: gguf.GGUFWriter, hf: HFModel) -> None:
    _gemma(writer, hf)
    writer.add_attn_logit_softcapping(hf.config.attn_logit_softcapping)


def _gemma3(writer: gguf.GGUFWriter, hf: HFModel) -> None:
    _gemma(writer, hf)
    rope = hf.config.rope_parameters["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


_FAMILIES: dict[str, tuple[gguf.MODEL_ARCH, Callable[[gguf.GGUFWriter, HFModel], None]]] = {
    "Gemma2ForCausalLM": (gguf.MODEL_ARCH.GEMMA2, _gemma2),
    "Gemma3ForCausalLM": (gguf.MODEL_ARCH.GEMMA3, _gemma3),
    "Phi3ForCausalLM": (gguf.MODEL_ARCH.PHI3, _phi3),
    "Qwen2ForCausalLM": (gguf.MODEL_ARCH.QWEN2, _qwen2),
    "Qwen3ForCausalLM": (gguf.MODEL_ARCH.QWEN3, _qwen3),
}
