"""Checkpoint files in memory: read-only maps, with errors that name the file."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

from octavo.errors import ModelError, WeightsError

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
