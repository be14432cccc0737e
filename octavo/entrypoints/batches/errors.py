"""What becomes of errors of the disk and the database."""

from __future__ import annotations

import errno
import sqlite3

from octavo.entrypoints.openai.errors import APIError, unavailable
from octavo.log import get_logger

logger = get_logger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StorageFullError(APIError):
    """No more bytes may be stored: whoever stores must delete some."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message, code="storage_full")


class FileLostError(Exception):
    """A content that the database knows is not there, or not all of it: something else than Octavo
    has removed it. Names the file.

    Args:
        param: field of the batch that has the file's id.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def storage_error(error: OSError | sqlite3.Error) -> APIError:
    """What a user is told of it: that the disk is full, or else (503) to come again. The log has
    the rest."""
    if isinstance(error, OSError):
        reason, is_full = error.strerror or type(error).__name__, error.errno in _FULL
    else:
        reason = str(error)
        is_full = "disk is full" in reason  # Python 3.10 does not tell SQLite's codes
    logger.error("the store of files and batches cannot be used: %s", reason)
    if is_full:
        return APIError(400, f"nothing more can be stored: {reason}", code="storage_full")
    return unavailable("files and batches cannot be stored or read now", "storage_unavailable")
