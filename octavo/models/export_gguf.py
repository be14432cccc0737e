"""A model as a GGUF file, the way llama.cpp's `convert_hf_to_gguf.py` writes it.

What the model's family read from its configuration is written, and read back before any weight is
written: a configuration that GGUF cannot hold is refused, not changed. Matrices are BF16, Q8_0 or
F32, vectors (norms, biases) always F32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from octavo.config.model import ConfigReader
from octavo.contracts.tensor import DType, HostTensor
from octavo.errors import ConfigError
from octavo.layers.rope import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeParameters,
    RopeScaling,
    YarnScaling,
)
from octavo.models.export_hf import text_config
from octavo.models.export_target import staged
from octavo.models.export_tensors import Place, TensorFiles, block_size
from octavo.models.files import ModelFiles
from octavo.models.gguf import GGUFFile
from octavo.models.gguf_config import gguf_config
from octavo.models.gguf_families import ARCHITECTURES, GGUFArchitecture
from octavo.models.gguf_names import gguf_name, permute_rows
from octavo.models.llama import LlamaConfig, LlamaForCausalLM
from octavo.models.loader import fitting_weights
from octavo.models.progress import Progress
from octavo.models.registry import build_model

DTYPES = {"float32": DType.F32, "bfloat16": DType.BF16, "q8_0": DType.Q8_0}
_FILE_TYPES = {DType.F32: 0, DType.BF16: 32, DType.Q8_0: 7}  # llama.cpp's LLAMA_FTYPE_*
_QUANTIZATION_VERSION = 2
_ALIGNMENT = 32
_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Phi3ForCausalLM": "phi3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
}
"""Hugging Face class → general.architecture; the inverse of what `gguf_families` reads."""

Metadata = dict[str, Any]


def export_gguf(
    files: ModelFiles,
    out: Path,
    *,
    dtype: str,
    tokenizer: Mapping[str, Any],
    force: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write a file that llama.cpp and we load as the very same model.

    Args:
        dtype: of the matrices: "float32" (exact), "bfloat16" (rounded to nearest, once; vectors
            too) or "q8_0".
        tokenizer: the metadata `tokenizer.*`: int, float, bool, str, list of str, numpy array.
        force: replace the file at `out`.
        progress: told how many bytes are written.

    Raises:
        ConfigError: another dtype, or a target that cannot be.
        UnsupportedModelError: GGUF has no architecture for the model, or cannot hold a part of its
            configuration.
        WeightsError: the model is broken.
        OSError: writing failed.
    """
    if dtype not in DTYPES:
        raise ConfigError(
            f"dtype={dtype!r} is not for the format 'gguf'; choose one of {', '.join(DTYPES)}"
        )
    model = _Model.of(files)
    places = _places(model, DTYPES[dtype])
    metadata = {
        "general.name": Path(files.name).stem,
        "general.file_type": _FILE_TYPES[DTYPES[dtype]],
        "general.quantization_version": _QUANTIZATION_VERSION,
        **_metadata(model),
        **tokenizer,
    }
    num_bytes = sum(place.nbytes for place in places.values())
    num_bytes += sum(_size_of(value) for value in metadata.values())
    with staged(out, num_bytes, force=force, is_folder=False) as path:
        places = _write_header(path, model, metadata, places)
        ropes = _rope_tensors(model.config)
        with TensorFiles([path], places) as tensors:
            for name, values in ropes.items():
                tensors.put(name, HostTensor.of(values))
        _check_readable(path, model)
        weights = {name: place for name, place in places.items() if name not in ropes}
        with TensorFiles([path], weights, reorder=permute_rows, progress=progress) as tensors:
            for name, tensor in fitting_weights(model.model, files.weights()):
                tensors.put(model.stored_name(name), tensor)


@dataclass(frozen=True, kw_only=True)
class _Model:
    """What is exported.

    Attributes:
        raw: config.json, for what `config` has no exact copy of.
        name: general.architecture.
    """

    model: LlamaForCausalLM
    config: LlamaConfig
    raw: ConfigReader
    name: str
    architecture: GGUFArchitecture

    @classmethod
    def of(cls, files: ModelFiles) -> _Model:
        """Raises UnsupportedModelError."""
        raw = text_config(files)
        reader = ConfigReader(raw, str(files.path))
        model = build_model(files.config)
        name = _ARCHITECTURES.get(raw["architectures"][0])
        if name is None or not isinstance(model, LlamaForCausalLM):
            raise reader.unsupported(
                f"{raw['architectures'][0]} cannot be written as GGUF; supported: "
                f"{', '.join(_ARCHITECTURES)}. The format hf takes every model"
            )
        return cls(
            model=model,
            config=model.read_config(files.config),
            raw=reader,
            name=name,
            architecture=ARCHITECTURES[name],
        )

    def stored_name(self, name: str) -> str:
        """The GGUF name of a slot's tensor."""
        stored = gguf_name(name, self.architecture.block_names)
        if stored is None:
            raise self.raw.unsupported(f"GGUF has no name for the tensor {name}")
        return stored


# -------------------------------------------------------------------- tensors


def _places(model: _Model, dtype: DType) -> dict[str, Place]:
    """By GGUF name; offsets count from where the data begins."""
    places: dict[str, Place] = {}
    end = 0

    def place(name: str, **options: Any) -> None:
        nonlocal end
        places[name] = Place(file=0, offset=end, **options)
        end += -(-places[name].nbytes // _ALIGNMENT) * _ALIGNMENT

    for name, values in _rope_tensors(model.config).items():
        place(name, shape=values.shape, dtype=DType.F32)
    rounded_to = DType.BF16 if dtype is DType.BF16 else DType.F32
    for slot in model.model.slots():
        for name, shape in slot.expected().items():
            is_norm = name.endswith("norm.weight")
            place(
                model.stored_name(name),
                shape=shape,
                dtype=_dtype_of(shape, dtype),
                rounded_to=rounded_to,
                added=model.architecture.norm_offset if is_norm else 0.0,
                num_heads=_permuted_heads(model, name),
            )
    return places


def _dtype_of(shape: tuple[int, ...], dtype: DType) -> DType:
    if len(shape) < 2:
        return DType.F32
    if dtype.is_block_format and shape[-1] % block_size(dtype)[0]:
        return DType.F32  # its rows are no whole blocks
    return dtype


def _permuted_heads(model: _Model, name: str) -> int:
    heads = model.config.heads
    parts = {"self_attn.q_proj": heads.num_heads, "self_attn.k_proj": heads.num_kv_heads}
    if not model.architecture.permuted_qk:
        return 0
    return next((n for part, n in parts.items() if f".{part}." in name), 0)


def _write_header(
    path: Path, model: _Model, metadata: Metadata, places: Mapping[str, Place]
) -> dict[str, Place]:
    """Make the file, at its full size. Returns the places with offsets in the file."""
    import gguf

    writer = gguf.GGUFWriter(path, model.name)
    for key, value in metadata.items():
        _add(writer, key, value)
    for name, place in places.items():
        kind = gguf.GGMLQuantizationType[place.dtype.name]
        writer.add_tensor_info(name, place.shape, np.dtype("<f4"), place.nbytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    start = -(-path.stat().st_size // _ALIGNMENT) * _ALIGNMENT
    last = max(places.values(), key=lambda p: p.offset)
    with path.open("r+b") as file:
        file.truncate(start + -(-(last.offset + last.nbytes) // _ALIGNMENT) * _ALIGNMENT)
    return {name: replace(place, offset=start + place.offset) for name, place in places.items()}


def _add(writer: Any, key: str, value: Any) -> None:
    """Add one metadata value, of GGUF's type for it."""
    import gguf

    kinds = gguf.GGUFValueType
    if isinstance(value, np.ndarray):
        element = kinds[value.dtype.name.upper().replace("BOOL_", "BOOL")]
        writer.add_key_value(key, value.tolist(), kinds.ARRAY, sub_type=element)
        return
    for python_type, kind in (
        (bool, kinds.BOOL),
        (int, kinds.UINT32),
        (float, kinds.FLOAT32),
        (str, kinds.STRING),
        (list, kinds.ARRAY),
    ):
        if isinstance(value, python_type):
            writer.add_key_value(key, value, kind)
            return
    raise TypeError(f"{key}: {type(value).__name__} has no GGUF type")


def _size_of(value: Any) -> int:
    if isinstance(value, list):
        return sum(8 + len(v.encode()) for v in value)
    return value.nbytes if isinstance(value, np.ndarray) else 8 + len(str(value).encode())


# -------------------------------------------------------------------- metadata


def _metadata(model: _Model) -> Metadata:
    """What `gguf_config` reads, from what the family has read."""
    config, heads = model.config, model.config.heads
    keys: Metadata = {
        "context_length": model.raw.int("max_position_embeddings", config.max_position),
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "attention.head_count": heads.num_heads,
        "attention.head_count_kv": heads.num_kv_heads,
        "attention.key_length": heads.head_dim,
        "attention.value_length": heads.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        **_soft_caps(config),
        **_windows(config),
        **_rope(config),
    }
    return {f"{model.name}.{key}": value for key, value in keys.items()}


def _soft_caps(config: LlamaConfig) -> Metadata:
    caps = {
        "attn_logit_softcapping": config.attention_soft_cap,
        "final_logit_softcapping": config.logits_soft_cap,
    }
    return {key: float(cap) for key, cap in caps.items() if cap is not None}


def _windows(config: LlamaConfig) -> Metadata:
    """The size of the window, and every how many layers there is one without it."""
    sizes = {w for w in config.windows if w is not None}
    if not sizes:
        return {}
    keys: Metadata = {"attention.sliding_window": max(sizes)}
    if None in config.windows:
        keys["attention.sliding_window_pattern"] = config.windows.index(None) + 1
    return keys


def _rope(config: LlamaConfig) -> Metadata:
    """Of layers with full attention, and of those with a window where it is another."""
    full = [r for r, w in zip(config.ropes, config.windows) if w is None] or list(config.ropes)
    sliding = [r for r, w in zip(config.ropes, config.windows) if w is not None]
    rope = full[0]
    keys: Metadata = {
        "rope.freq_base": rope.theta,
        "rope.dimension_count": rope.rotary_dim,
        **_SCALINGS.get(type(rope.scaling), _no_scaling)(rope.scaling),
    }
    if sliding and sliding[0].theta != rope.theta:
        keys["rope.freq_base_swa"] = sliding[0].theta
    return keys


def _no_scaling(scaling: Any) -> Metadata:
    return {}


def _linear(scaling: LinearScaling) -> Metadata:
    return {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}


def _yarn(scaling: YarnScaling) -> Metadata:
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": scaling.factor,
        "rope.scaling.original_context_length": scaling.original_max_position,
    }


def _longrope(scaling: LongRopeScaling) -> Metadata:
    if scaling.short_factor == scaling.long_factor:
        return {}
    return {
        "rope.scaling.original_context_length": scaling.original_max_position,
        "rope.scaling.attn_factor": scaling.attention_factor,
    }


_SCALINGS: Mapping[type[RopeScaling], Callable[[Any], Metadata]] = {
    LinearScaling: _linear,
    YarnScaling: _yarn,
    LongRopeScaling: _longrope,
}


def _rope_tensors(config: LlamaConfig) -> dict[str, np.ndarray]:
    """Frequency divisors, which llama.cpp keeps as tensors."""
    rope = config.ropes[0]
    scaling = rope.scaling
    if isinstance(scaling, Llama3Scaling):
        plain = RopeScaling().inv_freq(rope.theta, rope.rotary_dim, 1)
        divisors = plain / scaling.inv_freq(rope.theta, rope.rotary_dim, 1)
        return {"rope_freqs.weight": divisors.astype(np.float32)}
    if isinstance(scaling, LongRopeScaling):
        if scaling.short_factor == scaling.long_factor:
            return {"rope_freqs.weight": np.array(scaling.short_factor, np.float32)}
        return {
            "rope_factors_long.weight": np.array(scaling.long_factor, np.float32),
            "rope_factors_short.weight": np.array(scaling.short_factor, np.float32),
        }
    return {}


# -------------------------------------------------------------------- the check


def _check_readable(path: Path, model: _Model) -> None:
    """Raise UnsupportedModelError unless the file's configuration reads as the model's."""
    reader = ConfigReader(gguf_config(GGUFFile(path)), str(path))
    again = build_model(reader)
    assert isinstance(again, LlamaForCausalLM)
    read = again.read_config(reader)
    lost = [
        f.name
        for f in fields(LlamaConfig)
        if not _same(getattr(read, f.name), getattr(model.config, f.name))
    ]
    if lost:
        raise model.raw.unsupported(
            f"GGUF of architecture {model.name} does not keep this model's {', '.join(lost)}. "
            "The format hf does"
        )


def _same(a: Any, b: Any) -> bool:
    """Equal, up to the rounding of numbers to float32."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, RopeParameters) and isinstance(b, RopeParameters):
        return _same_rope(a, b)
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6)
    return bool(a == b)


def _same_rope(a: RopeParameters, b: RopeParameters) -> bool:
    if (a.rotary_dim, a.interleaved) != (b.rotary_dim, b.interleaved):
        return False
    return math.isclose(a.scaling.magnitude, b.scaling.magnitude, rel_tol=1e-6) and all(
        np.allclose(
            a.scaling.inv_freq(a.theta, a.rotary_dim, length),
            b.scaling.inv_freq(b.theta, b.rotary_dim, length),
            rtol=1e-6,
        )
        for length in _LENGTHS
    )


_LENGTHS = (1, 2**31)
"""Scalings that depend on the length have two cases, and one of these is in each."""
