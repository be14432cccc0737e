"""Where an export goes: whole and at once, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.errors import ConfigError

_SLACK_BYTES = 1 << 20
"""Room for file headers and the file system's own."""
_MODEL_FILES = {".json", ".safetensors", ".jinja"}


@contextmanager
def staged(out: Path, num_bytes: int, *, force: bool = False, is_folder: bool) -> Iterator[Path]:
    """A path beside `out` to write to. When the block ends well it is renamed to `out`; otherwise
    it vanishes, and what was at `out` is as before.

    Args:
        num_bytes: what will be written.
        force: replace what is at `out`: a file, or a folder that holds a model and nothing else.
        is_folder: the path is a folder, and exists.

    Raises:
        ConfigError: `out` exists, cannot be replaced or reached, or there is not enough space.
        OSError: writing failed.
    """
    out = Path(os.path.abspath(out))
    check_target(out, force=force, is_folder=is_folder)
    _check_space(out.parent, num_bytes)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name[:64]}-", dir=out.parent))
    try:
        path = scratch / "new"
        if is_folder:
            path.mkdir()
        yield path
        _sync(path)
        if is_folder and out.is_dir():
            os.rename(out, scratch / "old")
        try:
            os.rename(path, out)
        except OSError:
            if (scratch / "old").exists():
                os.rename(scratch / "old", out)
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_target(out: Path, *, force: bool, is_folder: bool) -> None:
    """Refuse a target before any work is done for it. Raises ConfigError."""
    if not out.parent.is_dir():
        raise ConfigError(f"{out.parent} is no folder; make it first")
    if not os.path.lexists(out):
        return
    if not force:
        raise ConfigError(f"{out} exists; choose another place, or replace it with --force")
    if out.is_symlink() or out.is_dir() is not is_folder:
        kind = "a folder" if is_folder else "a file"
        raise ConfigError(f"{out} is not {kind}, and is not replaced by one; remove it yourself")
    if is_folder and (other := _not_of_a_model(out)):
        raise ConfigError(
            f"{out} holds {other}, which is no part of a model: it is not replaced; remove it "
            "yourself"
        )


def _not_of_a_model(folder: Path) -> str | None:
    """The name of something in a folder that no export puts there."""
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink() or not entry.is_file() or entry.suffix not in _MODEL_FILES:
            return entry.name
    return None


def _check_space(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if num_bytes + _SLACK_BYTES > free:
        raise ConfigError(
            f"{folder} has {free >> 20} MiB free, but {(num_bytes + _SLACK_BYTES) >> 20} MiB are "
            "needed; free some space there, or export to another place"
        )


def _sync(path: Path) -> None:
    """To the disk before it gets its name: a crash must not leave half a file under it."""
    for file in path.iterdir() if path.is_dir() else [path]:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
