"""A model as a Hugging Face folder: safetensors, config.json, and the tokenizer's files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.contracts.tensor import DType
from octavo.errors import ConfigError
from octavo.models.export_target import staged
from octavo.models.export_tensors import Place, TensorFiles, stored_bytes
from octavo.models.files import ModelFiles
from octavo.models.loader import fitting_weights
from octavo.models.progress import Progress
from octavo.models.registry import build_model

MAX_SHARD_BYTES = 4_000_000_000
DTYPES = {"float32": DType.F32, "bfloat16": DType.BF16}
_STORED = {DType.F32: "F32", DType.BF16: "BF16"}
_ORIGINAL_LENGTH = "original_max_position_embeddings"
_TEXT_ONLY = {"Gemma3ForConditionalGeneration": "Gemma3ForCausalLM"}
"""Models whose text part alone is written, under the name of the class that is only that."""


def export_hf(
    files: ModelFiles,
    out: Path,
    *,
    dtype: str,
    tokenizer: Mapping[str, bytes],
    force: bool = False,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    progress: Progress | None = None,
) -> None:
    """Write a folder that transformers, vLLM and we load as the very same model.

    Args:
        dtype: "float32" (exact) or "bfloat16" (rounded to nearest, once).
        tokenizer: file name → content of the tokenizer's files.
        force: replace what is at `out`, if it is a model's folder.
        max_shard_bytes: the tensors' files are no larger (a single tensor may be).
        progress: told how many bytes are written.

    Raises:
        ConfigError: another dtype, or a target that cannot be.
        WeightsError, UnsupportedModelError: the model is broken or unknown.
        OSError: writing failed.
    """
    if dtype not in DTYPES:
        raise ConfigError(
            f"dtype={dtype!r} is not for the format 'hf'; choose {' or '.join(DTYPES)}"
        )
    model = build_model(files.config)
    shapes = {name: s for slot in model.slots() for name, s in slot.expected().items()}
    shards = _shards(shapes, DTYPES[dtype], max_shard_bytes)
    documents = _documents(files, dtype)
    num_bytes = sum(stored_bytes(s, DTYPES[dtype]) for s in shapes.values())
    num_bytes += sum(map(len, tokenizer.values()))
    with staged(out, num_bytes, force=force, is_folder=True) as folder:
        places, paths = _write_headers(folder, shards, shapes, DTYPES[dtype])
        with TensorFiles(paths, places, progress=progress) as tensors:
            for name, tensor in fitting_weights(model, files.weights()):
                tensors.put(name, tensor)
        for name, content in {**documents, **tokenizer}.items():
            (folder / name).write_bytes(content)


def text_config(files: ModelFiles) -> dict[str, Any]:
    """config.json of the model, or of its text part where that is what runs."""
    config = dict(files.raw_config)
    (name,) = config["architectures"][:1]
    if name not in _TEXT_ONLY:
        return config
    ids = {k: v for k, v in config.items() if k.endswith("_token_id") and "image" not in k}
    return {**ids, **config["text_config"], "architectures": [_TEXT_ONLY[name]]}


def _documents(files: ModelFiles, dtype: str) -> dict[str, bytes]:
    config = text_config(files)
    config.pop("dtype", None)
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "longrope" and _ORIGINAL_LENGTH in scaling:
        config.setdefault(_ORIGINAL_LENGTH, scaling[_ORIGINAL_LENGTH])  # transformers looks there
    documents = {"config.json": {**config, "torch_dtype": dtype}}
    if files.generation_config:
        documents["generation_config.json"] = files.generation_config
    return {name: json_bytes(values) for name, values in documents.items()}


def json_bytes(values: Any) -> bytes:
    """A JSON file's content."""
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


def _shards(
    shapes: Mapping[str, tuple[int, ...]], dtype: DType, max_bytes: int
) -> list[dict[str, int]]:
    """The tensors of each file, with their bytes, in checkpoint order."""
    shards: list[dict[str, int]] = [{}]
    for name, shape in shapes.items():
        num_bytes = stored_bytes(shape, dtype)
        if shards[-1] and sum(shards[-1].values()) + num_bytes > max_bytes:
            shards.append({})
        shards[-1][name] = num_bytes
    return shards


def _write_headers(
    folder: Path,
    shards: list[dict[str, int]],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: DType,
) -> tuple[dict[str, Place], list[Path]]:
    """Make the tensors' files, with the index where they are several. Returns where each tensor
    goes."""
    count = len(shards)
    names = [
        f"model-{i + 1:05d}-of-{count:05d}.safetensors" if count > 1 else "model.safetensors"
        for i in range(count)
    ]
    places: dict[str, Place] = {}
    for i, shard in enumerate(shards):
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, num_bytes in shard.items():
            header[name] = {
                "dtype": _STORED[dtype],
                "shape": list(shapes[name]),
                "data_offsets": [end, end := end + num_bytes],
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        start = 8 + len(text)
        with (folder / names[i]).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(start + end)
        for name in shard:
            offset = start + header[name]["data_offsets"][0]
            places[name] = Place(file=i, offset=offset, shape=shapes[name], dtype=dtype)
    if count > 1:
        index = {
            "metadata": {"total_size": sum(sum(s.values()) for s in shards)},
            "weight_map": {name: names[place.file] for name, place in places.items()},
        }
        (folder / "model.safetensors.index.json").write_bytes(json_bytes(index))
    return places, [folder / name for name in names]
