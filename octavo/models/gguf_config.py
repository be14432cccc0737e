"""GGUF metadata → a configuration with Hugging Face's keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.config.model import ConfigReader
from octavo.errors import WeightsError
from octavo.log import get_logger
from octavo.models.gguf import GGUFFile
from octavo.models.gguf_families import ARCHITECTURES, GGUFArchitecture, read_float32

logger = get_logger(__name__)


def gguf_architecture(file: GGUFFile) -> GGUFArchitecture:
    """The entry for a file. Raises UnsupportedModelError."""
    reader = ConfigReader(file.metadata, str(file.path))
    found: GGUFArchitecture = reader.choice("general.architecture", ARCHITECTURES)
    return found


def gguf_config(file: GGUFFile) -> dict[str, Any]:
    """config.json as the model's Hugging Face repository would have it.

    Raises:
        UnsupportedModelError: unknown architecture or rope scaling, or a missing key.
        WeightsError: the embedding is missing, or there are more layers than tensors.
    """
    metadata = ConfigReader(file.metadata, str(file.path))
    architecture = gguf_architecture(file)
    prefix = file.metadata["general.architecture"]
    if metadata.int("split.count", 1) > 1:
        raise metadata.unsupported(
            "one of several split files; merge them with llama.cpp's `llama-gguf-split --merge`"
        )
    num_layers = metadata.int(f"{prefix}.block_count")
    if num_layers > (num_tensors := len(file.tensors)):
        raise WeightsError(
            f"{file.path}: {prefix}.block_count={num_layers}, but there are {num_tensors} tensors"
        )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise WeightsError(f"{file.path}: tensor token_embd.weight is missing")
    num_heads = metadata.int(f"{prefix}.attention.head_count")
    config: dict[str, Any] = {
        **architecture.family(metadata),
        "vocab_size": embedding.shape[0],
        "hidden_size": metadata.int(f"{prefix}.embedding_length"),
        "intermediate_size": metadata.int(f"{prefix}.feed_forward_length"),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.int(f"{prefix}.attention.head_count_kv", num_heads),
        "max_position_embeddings": metadata.int(f"{prefix}.context_length"),
        "rms_norm_eps": read_float32(metadata, f"{prefix}.attention.layer_norm_rms_epsilon"),
        "rope_theta": read_float32(metadata, f"{prefix}.rope.freq_base", 10000.0),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **_head_dims(metadata, prefix),
        **_token_ids(metadata),
    }
    if scaling := _rope_scaling(file, metadata, prefix, config["max_position_embeddings"]):
        config["rope_scaling"] = scaling
    return config


def gguf_generation_config(file: GGUFFile) -> dict[str, Any]:
    """generation_config.json: the ids that begin and end a text, and default sampling."""
    metadata = ConfigReader(file.metadata, str(file.path))
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ends = [metadata.int(f"tokenizer.ggml.{key}", None) for key in keys]
    ends = list(dict.fromkeys(i for i in ends if i is not None))
    begin = metadata.int("tokenizer.ggml.bos_token_id", None)
    config = {"bos_token_id": begin, "eos_token_id": ends or None, **_sampling(metadata)}
    return {key: value for key, value in config.items() if value is not None}


def _sampling(metadata: ConfigReader) -> dict[str, Any]:
    """What the file's author recommends."""
    floats = {"temperature": "temp", "top_p": "top_p", "min_p": "min_p"}
    floats["repetition_penalty"] = "penalty_repeat"
    keys = {field: f"general.sampling.{name}" for field, name in floats.items()}
    values: dict[str, Any] = {
        field: read_float32(metadata, key) for field, key in keys.items() if key in metadata
    }
    if (key := "general.sampling.top_k") in metadata:
        values["top_k"] = max(0, int(metadata.float(key)))  # llama.cpp: 0 and less turn it off
    return values


def _head_dims(metadata: ConfigReader, prefix: str) -> dict[str, Any]:
    rotary_dim = metadata.int(f"{prefix}.rope.dimension_count", None)
    head_dim = metadata.int(f"{prefix}.attention.key_length", None)
    if metadata.int(f"{prefix}.attention.value_length", head_dim) != head_dim:
        raise metadata.unsupported("heads of keys and values differ in size: not supported")
    if head_dim is None:
        heads = metadata.int(f"{prefix}.attention.head_count")
        width = metadata.int(f"{prefix}.embedding_length")
        if heads == 0 or width % heads:
            raise metadata.unsupported(f"{width} dims cannot be shared among {heads} heads")
        head_dim = width // heads
    if rotary_dim is None or rotary_dim == head_dim:
        return {"head_dim": head_dim}
    return {"head_dim": head_dim, "partial_rotary_factor": rotary_dim / max(head_dim, 1)}


def _token_ids(metadata: ConfigReader) -> dict[str, int]:
    kinds = {"bos": "bos", "eos": "eos", "pad": "padding"}
    ids = {k: metadata.int(f"tokenizer.ggml.{v}_token_id", None) for k, v in kinds.items()}
    return {f"{kind}_token_id": i for kind, i in ids.items() if i is not None}


def _rope_scaling(
    file: GGUFFile, metadata: ConfigReader, prefix: str, max_position: int
) -> dict[str, Any] | None:
    if "rope_factors_long.weight" in file.tensors:
        return _longrope(file, metadata, f"{prefix}.rope.scaling", max_position)
    kind = metadata.choice(
        f"{prefix}.rope.scaling.type", ("none", "linear", "yarn"), default="none"
    )
    factors = _rope_factors(file)
    if factors is not None:
        if kind != "none":
            raise metadata.unsupported(f"rope_freqs.weight together with rope scaling {kind!r}")
        return {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "original_max_position_embeddings": max_position,
            "attention_factor": 1.0,
        }
    if kind == "none":
        return None
    scaling = {"rope_type": kind, "factor": read_float32(metadata, f"{prefix}.rope.scaling.factor")}
    if kind == "yarn":
        key = f"{prefix}.rope.scaling.original_context_length"
        scaling["original_max_position_embeddings"] = metadata.int(key, max_position)
    return scaling


def _longrope(
    file: GGUFFile, metadata: ConfigReader, prefix: str, max_position: int
) -> dict[str, Any]:
    """Phi-3's, whose factors are two tensors."""
    if "rope_factors_short.weight" not in file.tensors:
        raise WeightsError(f"{file.path}: tensor rope_factors_short.weight is missing")
    scaling = {
        "rope_type": "longrope",
        "original_max_position_embeddings": metadata.int(
            f"{prefix}.original_context_length", max_position
        ),
    }
    if f"{prefix}.attn_factor" in metadata:
        scaling["attention_factor"] = read_float32(metadata, f"{prefix}.attn_factor")
    for kind in ("short", "long"):
        factors = file.tensor(f"rope_factors_{kind}.weight").to_float32().ravel()
        scaling[f"{kind}_factor"] = [float(str(factor)) for factor in factors]
    return scaling


def _rope_factors(file: GGUFFile) -> list[float] | None:
    """The divisors of rotary frequencies that `rope_freqs.weight` holds, or None.

    llama.cpp stores Llama 3's rope scaling as one divisor per pair of dims and not as parameters:
    1 for the high frequencies, which come first, up to the scaling's factor for the low ones.
    Conversions of 2023 put inverse frequencies there instead (falling from 1); they repeat what
    the configuration says, as do divisors that are all 1.
    """
    if "rope_freqs.weight" not in file.tensors:
        return None
    factors = file.tensor("rope_freqs.weight").to_float32().ravel()
    if not (np.isfinite(factors).all() and factors[0] >= 1 and (np.diff(factors) >= 0).all()):
        logger.warning("%s: rope_freqs.weight holds no frequency divisors; ignored", file.path)
        return None
    return None if (factors == 1).all() else [float(f) for f in factors]
