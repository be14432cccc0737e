"""The files of the store: their rows, and a folder of what is in them.

A content never exists without its row: the row is written first and removed last (where the disk is
full, it can only be removed when the content has made room). Contents without one are swept away.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path

from octavo.entrypoints.batches.database import IS_UNFINISHED, Database, new_id
from octavo.entrypoints.batches.errors import StorageFullError
from octavo.entrypoints.batches.objects import FileObject, Purpose
from octavo.entrypoints.openai.errors import APIError, bad_request, unavailable
from octavo.entrypoints.openai.shares import exceeds_share
from octavo.errors import shown

MAX_FILES = 10_000
"""Of one owner."""
MAX_UPLOAD_SECONDS = 86400
"""An upload of so long ago was cut off by the end of its process."""

_ORPHAN_SECONDS = 3600.0


class StoredFiles:
    """See the module.

    Args:
        folder: of the contents.
        max_bytes: of all contents.
    """

    def __init__(self, database: Database, folder: Path, max_bytes: int) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._db = database
        self._folder = folder
        self._max_bytes = max_bytes

    def path_of(self, file_id: str) -> Path:
        """Where a file's content is. `file_id` comes from the database, never from a user."""
        return self._folder / file_id

    def check_room(self, owner: str, num_bytes: int) -> None:
        """Raises StorageFullError: there is no room for so many bytes more of this owner's."""
        used = own = 0
        for query in (
            "SELECT total(bytes), total(bytes * (owner = ?)) FROM files",
            "SELECT total(output_bytes + error_bytes), total((output_bytes + error_bytes)"
            f" * (owner = ?)) FROM batches WHERE {IS_UNFINISHED}",
        ):
            (num_of_all, num_of_owner) = self._db.execute(query, (owner,)).fetchone()
            used, own = used + int(num_of_all), own + int(num_of_owner)
        if used + num_bytes > self._max_bytes:
            raise StorageFullError(
                f"{used} bytes are stored, and with {num_bytes} more it would be over the "
                f"{self._max_bytes} of --max-batch-storage-bytes; delete files"
            )
        if owner and exceeds_share(own, used, self._max_bytes, num_bytes):
            raise StorageFullError(
                f"{own} bytes of this API key are stored, and with {num_bytes} more it would have "
                f"more than the {self._max_bytes - used} that are free of "
                "--max-batch-storage-bytes; delete files"
            )

    def begin_upload(self, owner: str, num_bytes: int) -> str:
        """The id of a file to be written; nobody sees it until `finish_upload`.

        Args:
            num_bytes: most that it will have.

        Raises:
            APIError: 400, it would be too much, or the owner has too many files.
        """
        file_id = new_id("file-")
        with self._db.transaction():
            (count,) = self._db.execute(
                "SELECT count(*) FROM files WHERE owner = ?", (owner,)
            ).fetchone()
            if count >= MAX_FILES:
                raise bad_request(
                    f"there are {count} files, and {MAX_FILES} are the most; delete some"
                )
            self.check_room(owner, num_bytes)
            self._db.execute(
                "INSERT INTO files (id, owner, purpose, filename, bytes, created_at, is_ready)"
                " VALUES (?, ?, 'batch', '', ?, ?, 0)",
                (file_id, owner, num_bytes, self._db.now),
            )
        return file_id

    def finish_upload(
        self, file_id: str, filename: str, num_bytes: int, expires_after: int | None
    ) -> FileObject:
        """The content is there, and on the disk. Raises APIError 503: the clock has jumped, and it
        was taken for one that was cut off."""
        now = self._db.now
        sync_folder(self._folder)
        with self._db.transaction():
            self._db.execute(
                "UPDATE files SET filename = ?, bytes = ?, created_at = ?, expires_at = ?,"
                " is_ready = 1 WHERE id = ?",
                (filename, num_bytes, now, expires_after and now + expires_after, file_id),
            )
        row = self._db.execute("SELECT * FROM files WHERE id = ?", (file_id,)).fetchone()
        if row is None:
            raise unavailable("the upload was swept away; send it again", "storage_unavailable")
        return _file_of(row)

    def remove_upload(self, file_id: str) -> None:
        """It was broken off."""
        self._remove([file_id])

    def get(self, owner: str, file_id: str) -> FileObject:
        """One file. Raises APIError 404."""
        row = self._db.execute(
            "SELECT * FROM files WHERE id = ? AND owner = ? AND is_ready"
            " AND (expires_at IS NULL OR expires_at > ?)",
            (file_id, owner, self._db.now),
        ).fetchone()
        if row is None:
            raise APIError(404, f"there is no file {shown(file_id)}", param="id")
        return _file_of(row)

    def page(
        self, owner: str, *, purpose: Purpose | None, limit: int, order: str, after: str | None
    ) -> tuple[list[FileObject], bool]:
        """(a page of files, whether there are more). Raises APIError 404 for `after`."""
        rows, has_more = self._db.page(
            "files",
            owner,
            limit,
            after,
            descending=order == "desc",
            condition="is_ready AND (expires_at IS NULL OR expires_at > ?)"
            + (" AND purpose = ?" if purpose else ""),
            values=[self._db.now, *([purpose] if purpose else [])],
        )
        return [_file_of(row) for row in rows], has_more

    def delete(self, owner: str, file_id: str) -> None:
        """Row and content. Raises APIError: 404; 409, a batch that has not ended reads it."""
        self.get(owner, file_id)
        user = self._db.execute(
            f"SELECT id, status FROM batches WHERE input_file_id = ? AND {IS_UNFINISHED}",
            (file_id,),
        ).fetchone()
        if user is not None:
            raise APIError(
                409,
                f"{file_id} is the input of {user['id']}, which is {user['status']}; cancel that "
                "first, or wait for its end",
                param="id",
            )
        self._remove([file_id])

    def _remove(self, file_ids: Iterable[str]) -> None:
        file_ids = list(file_ids)
        for file_id in file_ids:
            self.path_of(file_id).unlink(missing_ok=True)
        with self._db.transaction():
            self._db.executemany("DELETE FROM files WHERE id = ?", [(i,) for i in file_ids])

    def sweep(self) -> None:
        """Remove what has expired, and what crashes have left. For the holder of the lock."""
        now = self._db.now
        rows = self._db.execute(
            "SELECT id FROM files WHERE (expires_at <= ? OR (NOT is_ready AND created_at < ?))"
            f" AND id NOT IN (SELECT input_file_id FROM batches WHERE {IS_UNFINISHED})",
            (now, now - MAX_UPLOAD_SECONDS),
        ).fetchall()
        self._remove(row["id"] for row in rows)
        known = {row[0] for row in self._db.execute("SELECT id FROM files")}
        for row in self._db.execute(
            f"SELECT output_file_id, error_file_id FROM batches WHERE {IS_UNFINISHED}"
        ):
            known |= set(row)
        with os.scandir(self._folder) as entries:
            orphans = [e for e in entries if e.name not in known]
        for entry in orphans:
            if entry.stat(follow_symlinks=False).st_mtime < time.time() - _ORPHAN_SECONDS:
                os.unlink(entry.path)


def sync_folder(folder: Path) -> None:
    """Put the names of new files on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _file_of(row: sqlite3.Row) -> FileObject:
    names = set(FileObject.__struct_fields__) & set(row.keys())
    return FileObject(**{name: row[name] for name in names})
