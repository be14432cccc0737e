"""Small GGUF files, written by the `gguf` package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, VOCAB = 64, 96, 4, 4, 2, 80
HEAD_DIM = HIDDEN // HEADS

Tensors = dict[str, tuple[np.ndarray, str]]
"""Name → (float32 values, name of the type to store them in)."""


def llama_tensors(matrix_type: str = "Q4_1", embedding_type: str = "Q8_0") -> Tensors:
    """All tensors of a tiny tied Llama."""
    rng = np.random.default_rng(0)
    shapes = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (HEAD_DIM * KV_HEADS, HIDDEN)}
    shapes |= {"attn_v": shapes["attn_k"], "attn_output": (HIDDEN, HIDDEN)}
    shapes |= {"ffn_gate": (FFN, HIDDEN), "ffn_up": (FFN, HIDDEN), "ffn_down": (HIDDEN, FFN)}
    tensors: Tensors = {}

    def add(name: str, shape: tuple[int, ...], kind: str) -> None:
        tensors[f"{name}.weight"] = (rng.standard_normal(shape, dtype=np.float32) * 0.2, kind)

    add("token_embd", (VOCAB, HIDDEN), embedding_type)
    for i in range(LAYERS):
        add(f"blk.{i}.attn_norm", (HIDDEN,), "F32")
        add(f"blk.{i}.ffn_norm", (HIDDEN,), "F32")
        for name, shape in shapes.items():
            add(f"blk.{i}.{name}", shape, matrix_type)
    add("output_norm", (HIDDEN,), "F32")
    return tensors


def llama_metadata(**more: Any) -> dict[str, Any]:
    values = {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": HEAD_DIM,
    }
    return {f"llama.{key}": value for key, value in values.items()} | more


def write_gguf(
    path: Path,
    tensors: Tensors | None = None,
    metadata: Mapping[str, Any] | None = None,
    architecture: str = "llama",
) -> Path:
    """Write a file; by default the tiny Llama."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (llama_metadata() if metadata is None else metadata).items():
        _adder(writer, value)(key, value)
    for name, (values, type_name) in (llama_tensors() if tensors is None else tensors).items():
        kind = gguf.GGMLQuantizationType[type_name]
        plain = values.dtype != np.float32 or type_name == "F32"
        stored = values if plain else gguf.quantize(values, kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _adder(writer: gguf.GGUFWriter, value: Any) -> Callable[[str, Any], None]:
    kinds: list[tuple[type, Callable[[str, Any], None]]] = [
        (bool, writer.add_bool),
        (str, writer.add_string),
        (float, writer.add_float32),
        (int, writer.add_uint32),
        (list, writer.add_array),
    ]
    return next(add for kind, add in kinds if isinstance(value, kind))
