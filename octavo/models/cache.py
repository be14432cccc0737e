"""The cache of fetched model files: what is in it, and removing it again.

Only what lies in Octavo's own folder is seen: links are neither followed nor removed, wherever they
lead. (Models of the Hugging Face hub are in the hub's own cache, which other programs share.)
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.env import octavo_home
from octavo.errors import ConfigError, ModelError, shown
from octavo.models.aliases import ALIASES
from octavo.models.pypi import SIDECAR_SUFFIX


@dataclass(frozen=True, kw_only=True)
class CachedModel:
    """A model file, in the cache or known by its alias.

    Attributes:
        name: the alias, or PACKAGE==VERSION/FILE.
        source: where it comes from.
        path: where it is, or would be.
        num_bytes: of the file; 0 where it is not here.
        download_bytes: what fetching it takes, where that is known.
    """

    name: str
    source: str
    path: Path
    num_bytes: int
    download_bytes: int | None = None

    @property
    def is_here(self) -> bool:
        """Whether it has been fetched."""
        return self.num_bytes > 0


def list_models() -> list[CachedModel]:
    """The aliases, and whatever else is in the cache, by name."""
    sizes = dict(_files())
    models = []
    for alias, file in ALIASES.items():
        requirements = [part.requirement for part in file.parts]
        more = f" + {len(requirements) - 1}" if len(requirements) > 1 else ""
        models.append(
            CachedModel(
                name=alias,
                source=f"pypi:{requirements[0]}{more}",
                path=file.cache_path,
                num_bytes=sizes.pop(file.cache_path, 0),
                download_bytes=file.download_bytes,
            )
        )
    for path, num_bytes in sizes.items():
        package = path.parent.name
        models.append(
            CachedModel(
                name=f"{package}/{path.name}",
                source=f"pypi:{package}",
                path=path,
                num_bytes=num_bytes,
            )
        )
    return sorted(models, key=lambda m: (m.name not in ALIASES, m.name))


def find_model(name: str) -> CachedModel:
    """The model of that name, which must be in the cache. Raises ConfigError."""
    models = list_models()
    found = next((m for m in models if m.name == name), None)
    if found is None or not found.is_here:
        here = ", ".join(m.name for m in models if m.is_here) or "nothing"
        hint = f"; fetch it with `octavo pull {name}`" if found is not None else ""
        raise ConfigError(f"{shown(name)} is not in the cache, which holds {here}{hint}")
    return found


def remove_model(model: CachedModel) -> None:
    """Delete a file of the cache, with its note of the digest. Raises ModelError."""
    try:
        if _size(model.path) is None:
            raise OSError("it is not a file of the cache any more")
        model.path.unlink()
        model.path.with_name(model.path.name + SIDECAR_SUFFIX).unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(f"{model.path} cannot be removed: {error.strerror or error}") from error
    try:
        model.path.parent.rmdir()
    except OSError:  # it holds more
        return


def _files() -> Iterator[tuple[Path, int]]:
    """(path, bytes) of all model files: models/pypi/PACKAGE/FILE."""
    for package in _entries(octavo_home() / "models" / "pypi"):
        if package.is_dir(follow_symlinks=False):
            for file in _entries(Path(package.path)):
                path = Path(file.path)
                size = _size(path)
                if size and path.suffix != SIDECAR_SUFFIX:
                    yield path, size


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        if folder.is_symlink():
            return []
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda e: e.name)
    except OSError:  # not there, or not to be read
        return []


def _size(path: Path) -> int | None:
    """Bytes of a regular file; None for anything else, links too."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
