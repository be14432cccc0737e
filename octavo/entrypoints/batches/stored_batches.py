"""The batches of the store, as their owners see them."""

from __future__ import annotations

import sqlite3

import msgspec

from octavo.entrypoints.batches.database import IS_UNFINISHED, Database, new_id
from octavo.entrypoints.batches.objects import (
    UNFINISHED,
    Batch,
    BatchErrors,
    BatchRequestCounts,
)
from octavo.entrypoints.batches.stored_files import StoredFiles
from octavo.entrypoints.openai.errors import APIError, bad_request
from octavo.errors import shown

MAX_BATCHES = 10_000
"""Of one owner. Of so many the oldest finished one is forgotten for a new one."""
MAX_UNFINISHED = 100
"""Of one owner."""


class StoredBatches:
    """See the module."""

    def __init__(self, database: Database, files: StoredFiles) -> None:
        self._db = database
        self._files = files

    def create(
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
        batch_id, now = new_id("batch_"), self._db.now
        with self._db.transaction():
            try:
                purpose = self._files.get(owner, input_file_id).purpose
            except APIError as error:
                raise APIError(404, str(error), param="input_file_id") from None
            if purpose != "batch":
                raise bad_request(
                    f"{input_file_id} is of purpose {purpose!r}; upload one of purpose 'batch'",
                    "input_file_id",
                )
            self._make_room(owner)
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
        return self.get(owner, batch_id)

    def _make_room(self, owner: str) -> None:
        (unfinished,) = self._db.execute(
            f"SELECT count(*) FROM batches WHERE owner = ? AND {IS_UNFINISHED}", (owner,)
        ).fetchone()
        if unfinished >= MAX_UNFINISHED:
            raise bad_request(
                f"{unfinished} batches have not ended, and {MAX_UNFINISHED} are the most; cancel "
                "one, or wait",
            )
        self._db.execute(
            f"DELETE FROM batches WHERE owner = ? AND NOT {IS_UNFINISHED} AND seq IN (SELECT seq"
            " FROM batches WHERE owner = ? ORDER BY seq DESC LIMIT -1 OFFSET ?)",
            (owner, owner, MAX_BATCHES - 1),
        )

    def get(self, owner: str, batch_id: str) -> Batch:
        """One batch. Raises APIError 404."""
        row = self._db.execute(
            "SELECT * FROM batches WHERE id = ? AND owner = ?", (batch_id, owner)
        ).fetchone()
        if row is None:
            raise APIError(404, f"there is no batch {shown(batch_id)}", param="id")
        return _batch_of(row)

    def page(self, owner: str, *, limit: int, after: str | None) -> tuple[list[Batch], bool]:
        """(a page of batches, the newest first; whether there are more). Raises APIError 404."""
        rows, has_more = self._db.page("batches", owner, limit, after, descending=True)
        return [_batch_of(row) for row in rows], has_more

    def cancel(self, owner: str, batch_id: str) -> Batch:
        """Ask for a batch's end. Raises APIError: 404; 409, it is over, or about to be."""
        with self._db.transaction():
            status = self.get(owner, batch_id).status
            if status in ("validating", "in_progress"):
                self._db.execute(
                    "UPDATE batches SET status = 'cancelling', cancelling_at = ? WHERE id = ?",
                    (self._db.now, batch_id),
                )
            elif status != "cancelling":
                raise APIError(
                    409,
                    f"{batch_id} is {status}; one that is validating or in_progress can be "
                    "cancelled",
                    param="id",
                )
        return self.get(owner, batch_id)


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
