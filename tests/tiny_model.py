"""A whole model folder with random weights and a byte tokenizer, written without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_tiny_llama(folder: Path) -> Path:
    """A Llama of two layers: one id per byte, and `<end>`. Returns `folder`."""
    dim, hidden, heads, layers = 32, 48, 4, 2
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, "<end>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<end>", "chat_template": CHAT_TEMPLATE})
    )
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(vocab),
        "hidden_size": dim,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": vocab["<end>"],
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (len(vocab), dim),
        "model.norm.weight": (dim,),
    }
    for i in range(layers):
        prefix = f"model.layers.{i}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (dim,),
            f"{prefix}.self_attn.q_proj.weight": (dim, dim),
            f"{prefix}.self_attn.k_proj.weight": (dim // 2, dim),
            f"{prefix}.self_attn.v_proj.weight": (dim // 2, dim),
            f"{prefix}.self_attn.o_proj.weight": (dim, dim),
            f"{prefix}.post_attention_layernorm.weight": (dim,),
            f"{prefix}.mlp.gate_proj.weight": (hidden, dim),
            f"{prefix}.mlp.up_proj.weight": (hidden, dim),
            f"{prefix}.mlp.down_proj.weight": (dim, hidden),
        }
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(0, 0.3, s).astype(np.float32) for name, s in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    return folder
