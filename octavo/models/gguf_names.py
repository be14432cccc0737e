"""GGUF tensor names ↔ Hugging Face names, and the row order of q and k.

Names as llama.cpp's `convert_hf_to_gguf.py` writes them. A name that is not known here passes
through unchanged, so that the loader reports it as it stands in the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from octavo.contracts.tensor import HostTensor

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k": "self_attn.k_proj",
    "attn_k_norm": "self_attn.k_norm",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_EXTRAS = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
"""Known tensors that are no weights: they go into the configuration (gguf_config)."""

_NAME = re.compile(r"(?:blk\.(\d+)\.)?([a-z0-9_]+)\.(weight|bias)")
_HF_BLOCK = re.compile(r"model\.layers\.(\d+)\.(.+)")
_EXTRA_IN_BLOCK = re.compile(r"blk\.\d+\.attn_rot_embd(\.weight)?")


def hf_name(name: str, block_names: Mapping[str, str] = _BLOCK) -> str | None:
    """The Hugging Face name of a GGUF tensor; None for a known extra.

    Args:
        block_names: of tensors in a block, as far as an architecture has others than Llama.
    """
    if name in _EXTRAS or _EXTRA_IN_BLOCK.fullmatch(name):
        return None
    match = _NAME.fullmatch(name)
    if match is None:
        return name
    block, stem, kind = match.groups()
    if block is None:
        return f"{_TOP[stem]}.{kind}" if stem in _TOP else name
    found = block_names.get(stem) or _BLOCK.get(stem)
    return f"model.layers.{block}.{found}.{kind}" if found else name


def gguf_name(name: str, block_names: Mapping[str, str] = _BLOCK) -> str | None:
    """The GGUF name of a Hugging Face tensor: the inverse of `hf_name`; None for an unknown one."""
    tops = {hf: stem for stem, hf in _TOP.items()}
    blocks = {hf: stem for stem, hf in {**_BLOCK, **block_names}.items()}
    stem, _, kind = name.rpartition(".")
    match = _HF_BLOCK.fullmatch(stem)
    if match is None:
        return f"{tops[stem]}.{kind}" if stem in tops else None
    index, part = match.groups()
    return f"blk.{index}.{blocks[part]}.{kind}" if part in blocks else None


def unpermute_rows(tensor: HostTensor, num_heads: int) -> HostTensor:
    """Undo the row order that llama.cpp gives q and k of architecture `llama`.

    It stores the rows of a head as pairs (2i, 2i + 1) for its interleaved rope; Hugging Face has
    them as halves (i, i + head_dim / 2). Works on whole rows, so on raw quantized ones too.
    A tensor whose rows do not fit `num_heads` is returned as it is: the loader names it.
    """
    num_rows = tensor.shape[0]
    if num_heads < 1 or num_rows % (2 * num_heads):
        return tensor
    pairs = np.arange(num_rows).reshape(num_heads, num_rows // num_heads // 2, 2)
    return HostTensor(tensor.data[pairs.swapaxes(1, 2).ravel()], tensor.dtype, tensor.shape)


def permute_rows(tensor: HostTensor, num_heads: int) -> HostTensor:
    """The inverse of `unpermute_rows`."""
    num_rows = tensor.shape[0]
    if num_heads < 1 or num_rows % (2 * num_heads):
        return tensor
    halves = np.arange(num_rows).reshape(num_heads, 2, num_rows // num_heads // 2)
    return HostTensor(tensor.data[halves.swapaxes(1, 2).ravel()], tensor.dtype, tensor.shape)
