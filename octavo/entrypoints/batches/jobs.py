"""The batches of the store, for who runs them: what is to be done, and what came of it.

Results of a batch are appended to its output file and its error file, and flushed to the disk; then
one transaction marks their lines as done and says how long both files are. What is behind that
length was never committed (a crash between the two, a torn write): it is overwritten. So each line
is in the results once, whenever the process is killed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import msgspec

from octavo.entrypoints.batches.database import IS_UNFINISHED, Database
from octavo.entrypoints.batches.errors import FileLostError
from octavo.entrypoints.batches.lines import LineResult
from octavo.entrypoints.batches.objects import BatchErrors, BatchStatus
from octavo.entrypoints.batches.stored_files import StoredFiles, sync_folder


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


class Jobs:
    """See the module."""

    def __init__(self, database: Database, files: StoredFiles) -> None:
        self._db = database
        self._files = files

    def unfinished(self, limit: int) -> list[Job]:
        """Batches that have not ended: first those that are to end now, then the oldest one of
        each owner, then each one's second, and so on."""
        rows = self._db.execute(
            "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY owner ORDER BY seq) AS turn"
            f" FROM batches WHERE {IS_UNFINISHED})"
            " ORDER BY status != 'cancelling' AND expires_at > ?, turn, seq LIMIT ?",
            (self._db.now, limit),
        )
        return [_job_of(row) for row in rows]

    def get(self, batch_id: str) -> Job:
        """One batch."""
        return _job_of(self._row(batch_id))

    def start(self, batch_id: str, total: int) -> None:
        """Its input is valid; it has so many lines. Nothing happens unless it is validating."""
        with self._db.transaction():
            self._db.execute(
                "UPDATE batches SET status = 'in_progress', in_progress_at = ?, total = ?"
                " WHERE id = ? AND status = 'validating'",
                (self._db.now, total, batch_id),
            )

    def finalize(self, batch_id: str) -> bool:
        """All its lines are done; whether nobody asked for its end before that was so."""
        with self._db.transaction():
            cursor = self._db.execute(
                "UPDATE batches SET status = 'finalizing', finalizing_at = ?"
                " WHERE id = ? AND status = 'in_progress'",
                (self._db.now, batch_id),
            )
        return cursor.rowcount == 1

    def end(self, batch_id: str, status: BatchStatus, errors: BatchErrors | None = None) -> None:
        """Its last status; the files of its results become its owner's."""
        now = self._db.now
        with self._db.transaction():
            row = self._row(batch_id)
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
            StorageFullError: there is no room for them in the store.
            FileLostError: those before them are not there any more.
            OSError, sqlite3.Error: they cannot be written.
        """
        with self._db.transaction():
            row = self._row(batch_id)
            self._files.check_room(row["owner"], sum(len(r.data) for r in results))
            ends: dict[bool, int] = {}
            for is_error, kind in ((False, "output"), (True, "error")):
                data = b"".join(r.data for r in results if r.is_error == is_error)
                ends[is_error] = row[f"{kind}_bytes"]
                if data:
                    path = self._files.path_of(row[f"{kind}_file_id"])
                    ends[is_error] = _append(path, ends[is_error], data)
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

    def _row(self, batch_id: str) -> sqlite3.Row:
        row: sqlite3.Row = self._db.execute(
            "SELECT * FROM batches WHERE id = ?", (batch_id,)
        ).fetchone()
        return row


def _append(path: Path, end: int, data: bytes) -> int:
    """Write behind the first `end` bytes of a file, and nothing else there; the new end. Raises
    FileLostError: it has fewer."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    is_new = not end
    try:
        if os.fstat(fd).st_size < end:
            raise FileLostError(f"results so far, in the file {path.name}, are lost")
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


def _job_of(row: sqlite3.Row) -> Job:
    return Job(**{name: row[name] for name in Job.__struct_fields__})
