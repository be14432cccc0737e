from __future__ import annotations

import logging
import sqlite3

import pytest

from octavo.entrypoints.batches.errors import StorageFullError, storage_error


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        OSError(122, "Disk quota exceeded"),
        OSError(27, "File too large"),
        sqlite3.OperationalError("database or disk is full"),
    ],
)
def test_a_full_disk(error: OSError | sqlite3.Error) -> None:
    made = storage_error(error)
    assert (made.status, made.code) == (400, "storage_full")
    assert not isinstance(made, StorageFullError)  # a batch waits for its end


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(30, "Read-only file system"), "Read-only file system"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (OSError("odd"), "OSError"),
        (sqlite3.OperationalError("attempt to write a readonly database"), "readonly database"),
        (sqlite3.DatabaseError("database disk image is malformed"), "malformed"),
    ],
)
def test_whatever_else_is_for_the_log(
    error: OSError | sqlite3.Error, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "octavo"):
        made = storage_error(error)
    assert (made.status, made.code) == (503, "storage_unavailable")
    assert made.headers["retry-after"]
    assert reason not in made.message
    assert reason in caplog.text
