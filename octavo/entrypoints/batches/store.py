"""Files and batches on disk: a database of what there is, and a folder of contents.

    FOLDER/batches.db           all that is known of files and batches
    FOLDER/contents/FILE_ID     what is in the files
    FOLDER/lock                 held by the one process that runs the batches

Several processes may have a store of the same folder.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from octavo.entrypoints.batches.database import Database
from octavo.entrypoints.batches.jobs import Jobs
from octavo.entrypoints.batches.stored_batches import StoredBatches
from octavo.entrypoints.batches.stored_files import StoredFiles


class Store:
    """See the module. All of it is for one thread.

    Args:
        folder: is created, for its owner alone.
        max_bytes: of all contents.
        clock: seconds since 1970.

    Attributes:
        files: what was uploaded, and the results of batches.
        batches: what was asked for.
        jobs: the same, for who runs them.

    Raises:
        ConfigError: the folder holds the store of another version.
        OSError, sqlite3.Error: it cannot be used.
    """

    def __init__(
        self, folder: Path, *, max_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._lock_fd: int | None = None
        self._db = Database(folder / "batches.db", clock)
        self.files = StoredFiles(self._db, folder / "contents", max_bytes)
        self.batches = StoredBatches(self._db, self.files)
        self.jobs = Jobs(self._db, self.files)

    @property
    def now(self) -> int:
        """Seconds since 1970."""
        return self._db.now

    def close(self) -> None:
        """Give the lock back, and the database."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
        self._db.close()

    def take_lock(self) -> bool:
        """Whether this process is the one that runs the batches. The first time it is, what a
        crash left behind is swept away."""
        if self._lock_fd is not None:
            return True
        fd = os.open(self._folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._lock_fd = fd
        self.files.sweep()
        return True
