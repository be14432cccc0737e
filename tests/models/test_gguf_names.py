from __future__ import annotations

import numpy as np
import pytest

from octavo.contracts.tensor import DType, HostTensor
from octavo.models.gguf_names import hf_name, unpermute_rows


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
        ("blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"),
        ("blk.12.attn_q.bias", "model.layers.12.self_attn.q_proj.bias"),
        ("blk.3.attn_output.weight", "model.layers.3.self_attn.o_proj.weight"),
        ("blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
        ("blk.3.ffn_down.weight", "model.layers.3.mlp.down_proj.weight"),
        ("blk.3.attn_q_norm.weight", "model.layers.3.self_attn.q_norm.weight"),
        ("rope_freqs.weight", None),
        ("rope_factors_long.weight", None),
        ("blk.3.attn_rot_embd", None),
        ("blk.3.attn_rot_embd.weight", None),
        ("blk.0.foo.weight", "blk.0.foo.weight"),
        ("attn_q.weight", "attn_q.weight"),
        ("blk.0.output.weight", "blk.0.output.weight"),
        ("whatever", "whatever"),
    ],
)
def test_names(stored: str, name: str | None) -> None:
    assert hf_name(stored) == name


def test_an_architecture_has_names_of_its_own() -> None:
    own = {"ffn_norm": "pre_mlp_norm", "new": "mlp.new"}
    assert hf_name("blk.1.ffn_norm.weight", own) == "model.layers.1.pre_mlp_norm.weight"
    assert hf_name("blk.1.new.bias", own) == "model.layers.1.mlp.new.bias"
    assert hf_name("blk.1.attn_q.weight", own) == "model.layers.1.self_attn.q_proj.weight"


def permute(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """As llama.cpp's convert_hf_to_gguf.py stores q and k."""
    half = weights.shape[0] // num_heads // 2
    return (
        weights.reshape(num_heads, 2, half, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


@pytest.mark.parametrize(("num_heads", "head_dim"), [(1, 2), (3, 8), (4, 6)])
def test_rows_come_back_in_order(num_heads: int, head_dim: int) -> None:
    weights = np.arange(num_heads * head_dim * 5, dtype=np.float32).reshape(-1, 5)
    stored = HostTensor.of(permute(weights, num_heads))
    assert np.array_equal(unpermute_rows(stored, num_heads).data, weights)
    bias = HostTensor.of(permute(weights[:, 0].copy(), num_heads))
    assert np.array_equal(unpermute_rows(bias, num_heads).data, weights[:, 0])


def test_raw_rows_of_a_block_format_move_whole() -> None:
    raw = np.arange(16 * 20, dtype=np.uint16).astype(np.uint8).reshape(16, 20)
    tensor = HostTensor(permute(raw, 2), DType.Q4_1, (16, 32))
    back = unpermute_rows(tensor, 2)
    assert np.array_equal(back.data, raw)
    assert (back.dtype, back.shape) == (DType.Q4_1, (16, 32))


@pytest.mark.parametrize("num_heads", [0, 3, 8])
def test_rows_that_fit_no_heads_are_left_to_the_loader(num_heads: int) -> None:
    tensor = HostTensor.of(np.zeros((8, 2), dtype=np.float32))
    assert unpermute_rows(tensor, num_heads) is tensor
