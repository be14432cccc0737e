"""Models of the Hugging Face hub, through its own client and cache.

Honours HF_HOME, HF_HUB_OFFLINE, HF_TOKEN and HF_ENDPOINT, as the client does.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from octavo.errors import DownloadError
from octavo.models.progress import Progress

_REPOSITORY = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?", re.ASCII)
_FILE = re.compile(r"([\w.-]{1,96}/[\w.-]{1,96})/(.+\.gguf)", re.ASCII)
_SMALL_FILES = ["*.json", "*.jinja"]
_WEIGHTS = "*.safetensors"
_UNWANTED = ["*/*", "consolidated*"]  # subfolders and second copies in another layout


def is_repository(name: str) -> bool:
    """Whether a name could be a repository (OWNER/NAME), or a GGUF file in one
    (OWNER/NAME/FILE.gguf)."""
    return bool(_REPOSITORY.fullmatch(name) or _FILE.fullmatch(name))


def fetch_repository(
    name: str, *, revision: str | None, weights: bool, progress: Progress | None
) -> Path:
    """A folder with a repository's configuration, tokenizer and (if asked for) safetensors; or, for
    OWNER/NAME/FILE.gguf, that file. Pickled weights are never fetched.

    Raises:
        DownloadError: unknown, not accessible, or not reachable.
    """
    import huggingface_hub

    options: dict[str, Any] = {"revision": revision, "tqdm_class": _bar(progress)}
    try:
        if file := _FILE.fullmatch(name):
            return Path(huggingface_hub.hf_hub_download(file[1], file[2], **options))
        patterns = [*_SMALL_FILES, _WEIGHTS] if weights else _SMALL_FILES
        return Path(
            huggingface_hub.snapshot_download(
                name, allow_patterns=patterns, ignore_patterns=_UNWANTED, **options
            )
        )
    except Exception as error:  # the client's, the network's and the file system's errors
        raise DownloadError(f"{name} cannot be fetched: {_explain(name, error)}") from error


def _explain(name: str, error: Exception) -> str:
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return f"its owner grants access on huggingface.co/{name}; ask there, then set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return "it has no such revision"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "there is no such repository; if it is private, set HF_TOKEN"
    if isinstance(error, errors.LocalEntryNotFoundError):
        if constants.HF_HUB_OFFLINE:
            return "HF_HUB_OFFLINE is set and it is not in the cache; unset it to fetch the model"
        return "the hub cannot be reached and it is not in the cache; check the network"
    return f"{type(error).__name__}: {str(error).strip()[:1000]}"


def _bar(progress: Progress | None) -> type:
    """A progress bar class for the client: silent, or telling `progress`."""
    from tqdm import tqdm

    most = 0  # the client runs one bar for the network and one for the disk

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)  # the client's own extension
            super().__init__(*args, **{**options, "disable": True})
            self.unit, self.total = options.get("unit"), options.get("total")
            self.n = options.get("initial") or 0

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal most
            self.n += n or 0
            if progress is not None and self.unit == "B" and self.n > most:
                most = int(self.n)
                progress(most, int(self.total) if self.total else None)
            return None

    return Bar
