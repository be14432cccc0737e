"""Files and batches on disk: a database (SQLite) of what there is, and a folder of contents.

    FOLDER/batches.db           all that is known of files and batches
    FOLDER/contents/FILE_ID     what is in the files
    FOLDER/lock                 held by the one process that runs the batches

Several processes may have a store of the same folder. A content never exists without its row: the
row is written first and removed first, and contents without one are swept away.

Results of a batch are appended to its output file and its error file, and flushed to the disk; then
one transaction marks their lines as done and says how long both files are. What is behind that
length was never committed (a crash between the two, a torn write): it is overwritten. So each line
is in the results once, whenever the process is killed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from octavo.entrypoints.batches.lines import LineResult
from octavo.entrypoints.batches.objects import (
    UNFINISHED,
    Batch,
    BatchErrors,
    BatchRequestCounts,
    BatchStatus,
    FileObject,
    Purpose,
)
from octavo.entrypoints.batches.schema import SCHEMA, SCHEMA_VERSION, file_of, new_id
from octavo.entrypoints.openai.errors import APIError, bad_request
from octavo.errors import ConfigError, shown

MAX_FILES = 10_000
MAX_BATCHES = 10_000
"""Of one owner. Of so many batches the oldest finished one is forgotten for a new one."""
MAX_UNFINISHED = 100
"""Batches of one owner."""
MAX_UPLOAD_SECONDS = 86400
"""An upload of so long ago was cut off by the end of its process."""

_BUSY_SECONDS = 30.0
_ORPHAN_SECONDS = 3600.0


class StorageFullError(APIError):
    """No more bytes may be stored."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message, code="storage_full")


class Job(msgspec.Struct, kw_only=True):
    """What running a batch needs to know of it. `total` is 0 until its input has been validated."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    status: BatchStatus
    expires_at: int
    total: int
    completed: int
    failed: int

    @property
    def num_left(self) -> int:
        """Lines without a result."""
        return self.total - self.completed - self.failed


class Store:
    """See the module. All of it is for one thread.

    Args:
        folder: is created, for its owner alone.
        max_bytes: of all contents.
        clock: seconds since 1970.

    Raises:
        ConfigError: the folder holds the store of another version.
        OSError, sqlite3.Error: it cannot be used.
    """

    def __init__(
        self, folder: Path, *, max_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder = folder
        self._contents = folder / "contents"
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock_fd: int | None = None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._contents.mkdir(mode=0o700, exist_ok=True)
        path = folder / "batches.db"
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._db = sqlite3.connect(
            path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._db.row_factory = sqlite3.Row
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
            self._db.execute(f"PRAGMA {pragma}")
        with self._transaction():
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version not in (0, SCHEMA_VERSION):
                raise ConfigError(
                    f"{path} is of version {version}, and this Octavo needs {SCHEMA_VERSION}; "
                    "give another --batch-dir",
                )
            for statement in SCHEMA:
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    @property
    def now(self) -> int:
        """Seconds since 1970."""
        return int(self._clock())

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
        self.sweep()
        return True

    # ---------------------------------------------------------------- files

    def path_of(self, file_id: str) -> Path:
        """Where a file's content is. `file_id` comes from the database, never from a user."""
        return self._contents / file_id

    def begin_upload(self, owner: str, num_bytes: int) -> str:
        """The id of a file to be written; nobody sees it until `finish_upload`.

        Args:
            num_bytes: most that it will have.

        Raises:
            APIError: 400, it would be too much, or the owner has too many files.
        """
        file_id = new_id("file-")
        with self._transaction():
            (count,) = self._db.execute(
                "SELECT count(*) FROM files WHERE owner = ?", (owner,)
            ).fetchone()
            if count >= MAX_FILES:
                raise bad_request(
                    f"there are {count} files, and {MAX_FILES} are the most; delete some"
                )
            self._check_room(num_bytes)
            self._db.execute(
                "INSERT INTO files (id, owner, purpose, filename, bytes, created_at, is_ready)"
                " VALUES (?, ?, 'batch', '', ?, ?, 0)",
                (file_id, owner, num_bytes, self.now),
            )
        return file_id

    def finish_upload(
        self, file_id: str, filename: str, num_bytes: int, expires_after: int | None
    ) -> FileObject:
        """The content is there, and on the disk."""
        now = self.now
        sync_folder(self._contents)
        with self._transaction():
            self._db.execute(
                "UPDATE files SET filename = ?, bytes = ?, created_at = ?, expires_at = ?,"
                " is_ready = 1 WHERE id = ?",
                (filename, num_bytes, now, expires_after and now + expires_after, file_id),
            )
        return file_of(self._db.execute("SELECT * FROM files WHERE id = ?", (file_id,)).fetchone())

    def remove_upload(self, file_id: str) -> None:
        """It was broken off."""
        self._remove_files([file_id])

    def file(self, owner: str, file_id: str) -> FileObject:
        """One file. Raises APIError 404."""
        row = self._db.execute(
            "SELECT * FROM files WHERE id = ? AND owner = ? AND is_ready"
            " AND (expires_at IS NULL OR expires_at > ?)",
            (file_id, owner, self.now),
        ).fetchone()
        if row is None:
            raise APIError(404, f"there is no file {shown(file_id)}", param="id")
        return file_of(row)

    def files(
        self, owner: str, *, purpose: Purpose | None, limit: int, order: str, after: str | None
    ) -> tuple[list[FileObject], bool]:
        """(a page of files, whether there are more). Raises APIError 404 for `after`."""
        rows, has_more = self._page(
            "files",
            owner,
            limit,
            after,
            descending=order == "desc",
            condition="is_ready AND (expires_at IS NULL OR expires_at > ?)"
            + (" AND purpose = ?" if purpose else ""),
            values=[self.now, *([purpose] if purpose else [])],
        )
        return [file_of(row) for row in rows], has_more

    def delete_file(self, owner: str, file_id: str) -> None:
        """Row and content. Raises APIError: 404; 409, a batch that has not ended reads it."""
        self.file(owner, file_id)
        user = self._db.execute(
            f"SELECT id, status FROM batches WHERE input_file_id = ? AND {_IS_UNFINISHED}",
            (file_id,),
        ).fetchone()
        if user is not None:
            raise APIError(
                409,
                f"{file_id} is the input of {user['id']}, which is {user['status']}; cancel that "
                "first, or wait for its end",
                param="id",
            )
        self._remove_files([file_id])

    def _remove_files(self, file_ids: Iterable[str]) -> None:
        file_ids = list(file_ids)
        with self._transaction():
            self._db.executemany("DELETE FROM files WHERE id = ?", [(i,) for i in file_ids])
        for file_id in file_ids:
            self.path_of(file_id).unlink(missing_ok=True)

    def _check_room(self, num_bytes: int) -> None:
        (files,) = self._db.execute("SELECT total(bytes) FROM files").fetchone()
        (results,) = self._db.execute(
            f"SELECT total(output_bytes + error_bytes) FROM batches WHERE {_IS_UNFINISHED}"
        ).fetchone()
        used = int(files + results)
        if used + num_bytes > self._max_bytes:
            raise StorageFullError(
                f"{used} bytes are stored, and with {num_bytes} more it would be over the "
                f"{self._max_bytes} of --max-batch-storage-bytes; delete files"
            )

    # ---------------------------------------------------------------- batches

    def create_batch(
        self,
        owner: str,
        *,
        endpoint: str,
        input_file_id: str,
        completion_window: str,
        window_seconds: int,
        metadata: dict[str, str] | None,
        output_expires_after: int | None,
    ) -> Batch:
        """A new batch.

        Raises:
            APIError: 404, no such file; 400, too many batches that have not ended.
        """
        batch_id, now = new_id("batch_"), self.now
        with self._transaction():
            try:
                purpose = self.file(owner, input_file_id).purpose
            except APIError as error:
                raise APIError(404, str(error), param="input_file_id") from None
            if purpose != "batch":
                raise bad_request(
                    f"{input_file_id} is of purpose {purpose!r}; upload one of purpose 'batch'",
                    "input_file_id",
                )
            self._make_room_for_batch(owner)
            self._db.execute(
                "INSERT INTO batches (id, owner, endpoint, input_file_id, completion_window,"
                " status, created_at, expires_at, metadata, output_expires_after, output_file_id,"
                " error_file_id) VALUES (?, ?, ?, ?, ?, 'validating', ?, ?, ?, ?, ?, ?)",
                (
                    *(batch_id, owner, endpoint, input_file_id, completion_window),
                    *(now, now + window_seconds),
                    None if metadata is None else msgspec.json.encode(metadata).decode(),
                    *(output_expires_after, new_id("file-"), new_id("file-")),
                ),
            )
        return self.batch(owner, batch_id)

    def _make_room_for_batch(self, owner: str) -> None:
        (unfinished,) = self._db.execute(
            f"SELECT count(*) FROM batches WHERE owner = ? AND {_IS_UNFINISHED}", (owner,)
        ).fetchone()
        if unfinished >= MAX_UNFINISHED:
            raise bad_request(
                f"{unfinished} batches have not ended, and {MAX_UNFINISHED} are the most; cancel "
                "one, or wait",
            )
        self._db.execute(
            f"DELETE FROM batches WHERE owner = ? AND NOT {_IS_UNFINISHED} AND seq IN (SELECT seq"
            " FROM batches WHERE owner = ? ORDER BY seq DESC LIMIT -1 OFFSET ?)",
            (owner, owner, MAX_BATCHES - 1),
        )

    def batch(self, owner: str, batch_id: str) -> Batch:
        """One batch. Raises APIError 404."""
        row = self._db.execute(
            "SELECT * FROM batches WHERE id = ? AND owner = ?", (batch_id, owner)
        ).fetchone()
        if row is None:
            raise APIError(404, f"there is no batch {shown(batch_id)}", param="id")
        return _batch_of(row)

    def batches(self, owner: str, *, limit: int, after: str | None) -> tuple[list[Batch], bool]:
        """(a page of batches, the newest first; whether there are more). Raises APIError 404."""
        rows, has_more = self._page("batches", owner, limit, after, descending=True)
        return [_batch_of(row) for row in rows], has_more

    def cancel_batch(self, owner: str, batch_id: str) -> Batch:
        """Ask for a batch's end. Raises APIError: 404; 409, it is over, or about to be."""
        with self._transaction():
            status = self.batch(owner, batch_id).status
            if status in ("validating", "in_progress"):
                self._db.execute(
                    "UPDATE batches SET status = 'cancelling', cancelling_at = ? WHERE id = ?",
                    (self.now, batch_id),
                )
            elif status != "cancelling":
                raise APIError(
                    409,
                    f"{batch_id} is {status}; one that is validating or in_progress can be "
                    "cancelled",
                    param="id",
                )
        return self.batch(owner, batch_id)

    def _page(
        self,
        table: str,
        owner: str,
        limit: int,
        after: str | None,
        *,
        descending: bool,
        condition: str = "1",
        values: Sequence[Any] = (),
    ) -> tuple[list[sqlite3.Row], bool]:
        query = f"SELECT * FROM {table} WHERE owner = ? AND {condition}"
        values = [owner, *values]
        if after is not None:
            last = self._db.execute(
                f"SELECT seq FROM {table} WHERE id = ? AND owner = ?", (after, owner)
            ).fetchone()
            if last is None:
                raise APIError(404, f"after: there is no {shown(after)}", param="after")
            query += f" AND seq {'<' if descending else '>'} ?"
            values.append(last["seq"])
        query += f" ORDER BY seq {'DESC' if descending else 'ASC'} LIMIT ?"
        rows = self._db.execute(query, [*values, limit + 1]).fetchall()
        return rows[:limit], len(rows) > limit

    # ---------------------------------------------------------------- running them

    def unfinished(self, limit: int) -> list[Job]:
        """Batches that have not ended: first those that are to end now, then the oldest one of
        each owner, then each one's second, and so on."""
        rows = self._db.execute(
            "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY owner ORDER BY seq) AS turn"
            f" FROM batches WHERE {_IS_UNFINISHED})"
            " ORDER BY status != 'cancelling' AND expires_at > ?, turn, seq LIMIT ?",
            (self.now, limit),
        )
        return [_job_of(row) for row in rows]

    def job(self, batch_id: str) -> Job:
        """One batch."""
        row = self._db.execute("SELECT * FROM batches WHERE id = ?", (batch_id,)).fetchone()
        return _job_of(row)

    def num_unfinished(self) -> int:
        """How many batches have not ended."""
        query = f"SELECT count(*) FROM batches WHERE {_IS_UNFINISHED}"
        return int(self._db.execute(query).fetchone()[0])

    def start_batch(self, batch_id: str, total: int) -> None:
        """Its input is valid; it has so many lines. Nothing happens unless it is validating."""
        with self._transaction():
            self._db.execute(
                "UPDATE batches SET status = 'in_progress', in_progress_at = ?, total = ?"
                " WHERE id = ? AND status = 'validating'",
                (self.now, total, batch_id),
            )

    def finalize_batch(self, batch_id: str) -> bool:
        """All its lines are done; whether nobody asked for its end before that was so."""
        with self._transaction():
            cursor = self._db.execute(
                "UPDATE batches SET status = 'finalizing', finalizing_at = ?"
                " WHERE id = ? AND status = 'in_progress'",
                (self.now, batch_id),
            )
        return cursor.rowcount == 1

    def end_batch(
        self, batch_id: str, status: BatchStatus, errors: BatchErrors | None = None
    ) -> None:
        """Its last status; the files of its results become its owner's."""
        now = self.now
        with self._transaction():
            row = self._db.execute("SELECT * FROM batches WHERE id = ?", (batch_id,)).fetchone()
            expires_after = row["output_expires_after"]
            for kind in ("output", "error"):
                if not row[f"{kind}_bytes"]:
                    continue
                self._db.execute(
                    "INSERT INTO files (id, owner, purpose, filename, bytes, created_at,"
                    " expires_at, is_ready) VALUES (?, ?, 'batch_output', ?, ?, ?, ?, 1)",
                    (
                        *(row[f"{kind}_file_id"], row["owner"], f"{batch_id}_{kind}.jsonl"),
                        *(row[f"{kind}_bytes"], now, expires_after and now + expires_after),
                    ),
                )
            self._db.execute(
                f"UPDATE batches SET status = ?, {status}_at = ?, errors = ? WHERE id = ?",
                (status, now, errors and msgspec.json.encode(errors).decode(), batch_id),
            )
            self._db.execute("DELETE FROM done WHERE batch_id = ?", (batch_id,))

    def done_lines(self, batch_id: str) -> set[int]:
        """Numbers of the lines whose results are stored."""
        rows = self._db.execute("SELECT line FROM done WHERE batch_id = ?", (batch_id,))
        return {row[0] for row in rows}

    def add_results(self, batch_id: str, results: Sequence[LineResult]) -> None:
        """Store results, once and for all.

        Raises:
            StorageFullError: there is no room for them, in the store or on the disk.
        """
        with self._transaction():
            row = self._db.execute("SELECT * FROM batches WHERE id = ?", (batch_id,)).fetchone()
            self._check_room(sum(len(r.data) for r in results))
            ends: dict[bool, int] = {}
            try:
                for is_error, kind in ((False, "output"), (True, "error")):
                    data = b"".join(r.data for r in results if r.is_error == is_error)
                    ends[is_error] = row[f"{kind}_bytes"]
                    if data:
                        path = self.path_of(row[f"{kind}_file_id"])
                        ends[is_error] = _append(path, ends[is_error], data)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    raise
                raise StorageFullError(f"the disk is full: {error.strerror}") from None
            self._db.executemany(
                "INSERT INTO done (batch_id, line) VALUES (?, ?)",
                [(batch_id, result.number) for result in results],
            )
            failed = sum(result.is_error for result in results)
            self._db.execute(
                "UPDATE batches SET output_bytes = ?, error_bytes = ?, completed = completed + ?,"
                " failed = failed + ? WHERE id = ?",
                (ends[False], ends[True], len(results) - failed, failed, batch_id),
            )

    def sweep(self) -> None:
        """Remove what has expired, and what crashes have left. For the holder of the lock."""
        now = self.now
        rows = self._db.execute(
            "SELECT id FROM files WHERE (expires_at <= ? OR (NOT is_ready AND created_at < ?))"
            f" AND id NOT IN (SELECT input_file_id FROM batches WHERE {_IS_UNFINISHED})",
            (now, now - MAX_UPLOAD_SECONDS),
        ).fetchall()
        self._remove_files(row["id"] for row in rows)
        known = {row[0] for row in self._db.execute("SELECT id FROM files")}
        for row in self._db.execute(
            f"SELECT output_file_id, error_file_id FROM batches WHERE {_IS_UNFINISHED}"
        ):
            known |= set(row)
        with os.scandir(self._contents) as entries:
            orphans = [e for e in entries if e.name not in known]
        for entry in orphans:
            if entry.stat(follow_symlinks=False).st_mtime < time.time() - _ORPHAN_SECONDS:
                os.unlink(entry.path)


_IS_UNFINISHED = f"status IN ({', '.join(map(repr, UNFINISHED))})"


def _append(path: Path, end: int, data: bytes) -> int:
    """Write behind the first `end` bytes of a file, and nothing else there; the new end."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    is_new = not end
    try:
        os.ftruncate(fd, end)
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, end)
            end += written
            view = view[written:]
        os.fdatasync(fd)
    finally:
        os.close(fd)
    if is_new:
        sync_folder(path.parent)
    return end


def sync_folder(folder: Path) -> None:
    """Put the names of new files on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _job_of(row: sqlite3.Row) -> Job:
    return Job(**{name: row[name] for name in Job.__struct_fields__})


def _batch_of(row: sqlite3.Row) -> Batch:
    is_over = row["status"] not in UNFINISHED
    names = set(Batch.__struct_fields__) & set(row.keys())
    values = {name: row[name] for name in names}
    if row["metadata"] is not None:
        values["metadata"] = msgspec.json.decode(row["metadata"])
    if row["errors"] is not None:
        values["errors"] = msgspec.json.decode(row["errors"], type=BatchErrors)
    for kind in ("output", "error"):
        if not (is_over and row[f"{kind}_bytes"]):
            values[f"{kind}_file_id"] = None
    counts = BatchRequestCounts(
        total=row["total"], completed=row["completed"], failed=row["failed"]
    )
    return Batch(**values, request_counts=counts)
