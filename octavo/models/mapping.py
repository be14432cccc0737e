"""Checkpoint files in memory: read-only maps, with errors that name the file."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

from octavo.errors import ModelError, WeightsError

_RELEASE_BYTES = 32 << 20

MAX_JSON_BYTES = 256 << 20  # the largest tokenizer.json in use is about 35 MB


def map_file(path: Path) -> mmap.mmap:
    """Map a file read-only. The map lives as long as arrays that view it.

    Raises:
        WeightsError: the file cannot be read, or is empty.
    """
    try:
        if not path.is_file():  # a folder, or a pipe that would wait for a writer
            raise OSError("not a regular file")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise WeightsError(f"{path} cannot be read: {error}") from error


class PageReleaser:
    """Hands pages of a map back while its tensors stream by, so that loading holds a little of the
    file in memory beside what is made of it. A page that is asked for again is read again.

    Args:
        mapping: of `map_file`.
    """

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = mapping
        self._num_bytes = 0

    def passed(self, num_bytes: int) -> None:
        """So many more bytes were looked at."""
        self._num_bytes += num_bytes
        if self._num_bytes >= _RELEASE_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED)
            self._num_bytes = 0


def read_text(path: Path) -> str:
    """A small text file. Raises ModelError where it is missing, huge or not UTF-8."""
    try:
        if (size := path.stat().st_size) > MAX_JSON_BYTES:
            raise ModelError(f"{path} has {size} bytes, more than the {MAX_JSON_BYTES} allowed")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object. Raises ModelError on anything else."""
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds {type(value).__name__}, but must hold a JSON object")
    return value
