"""The database (SQLite) of the store: its tables, and the connection to it."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from octavo.entrypoints.batches.objects import UNFINISHED
from octavo.entrypoints.openai.errors import APIError
from octavo.errors import ConfigError, shown

SCHEMA_VERSION = 1

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS files (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        owner TEXT NOT NULL,
        purpose TEXT NOT NULL,
        filename TEXT NOT NULL,
        bytes INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        expires_at INTEGER,
        is_ready INTEGER NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS files_of_owner ON files (owner, seq)",
    """CREATE TABLE IF NOT EXISTS batches (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        owner TEXT NOT NULL,
        endpoint TEXT NOT NULL,
        input_file_id TEXT NOT NULL,
        completion_window TEXT NOT NULL,
        status TEXT NOT NULL,
        errors TEXT,
        metadata TEXT,
        output_expires_after INTEGER,
        output_file_id TEXT NOT NULL,
        error_file_id TEXT NOT NULL,
        output_bytes INTEGER NOT NULL DEFAULT 0,
        error_bytes INTEGER NOT NULL DEFAULT 0,
        total INTEGER NOT NULL DEFAULT 0,
        completed INTEGER NOT NULL DEFAULT 0,
        failed INTEGER NOT NULL DEFAULT 0,
        created_at INTEGER NOT NULL,
        in_progress_at INTEGER,
        expires_at INTEGER NOT NULL,
        finalizing_at INTEGER,
        completed_at INTEGER,
        failed_at INTEGER,
        expired_at INTEGER,
        cancelling_at INTEGER,
        cancelled_at INTEGER
    )""",
    "CREATE INDEX IF NOT EXISTS batches_of_owner ON batches (owner, seq)",
    "CREATE INDEX IF NOT EXISTS batches_by_status ON batches (status)",
    # The primary key is what keeps a line from being in the results twice.
    """CREATE TABLE IF NOT EXISTS done (
        batch_id TEXT NOT NULL,
        line INTEGER NOT NULL,
        PRIMARY KEY (batch_id, line)
    ) WITHOUT ROWID""",
)

IS_UNFINISHED = f"status IN ({', '.join(map(repr, UNFINISHED))})"
"""Of a row of `batches`."""

_BUSY_SECONDS = 30.0
_JOURNAL_PAGES = 32
"""At which SQLite's journal is written into the database and begins anew: by default 1,000, and the
file is never smaller again. On a small disk that was most of it."""
_JOURNAL_BYTES = _JOURNAL_PAGES * 4096


class Database:
    """See the module. All of it is for one thread; several processes may have the same one open.

    Args:
        path: is created, for its owner alone.
        clock: seconds since 1970.

    Raises:
        ConfigError: it is of another version.
        OSError, sqlite3.Error: it cannot be used.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._clock = clock
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._connection = sqlite3.connect(
            path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._connection.row_factory = sqlite3.Row
        try:
            self._set_up(path)
        except BaseException:
            self.close()
            raise

    def _set_up(self, path: Path) -> None:
        for pragma in (
            *("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"),
            *(f"wal_autocheckpoint={_JOURNAL_PAGES}", f"journal_size_limit={_JOURNAL_BYTES}"),
        ):
            self.execute(f"PRAGMA {pragma}")
        with self.transaction():
            (version,) = self.execute("PRAGMA user_version").fetchone()
            if version not in (0, SCHEMA_VERSION):
                raise ConfigError(
                    f"{path} is of version {version}, and this Octavo needs {SCHEMA_VERSION}; "
                    "give another --batch-dir",
                )
            for statement in SCHEMA:
                self.execute(statement)
            self.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    @property
    def now(self) -> int:
        """Seconds since 1970."""
        return int(self._clock())

    def close(self) -> None:
        """Give it back."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is done within, or none of it if that raises."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # after some errors SQLite has rolled back already
                self.execute("ROLLBACK")
            raise

    def execute(self, query: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run one statement."""
        return self._connection.execute(query, values)

    def executemany(self, query: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each of several rows of values."""
        self._connection.executemany(query, rows)

    def page(
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
        """(some of an owner's rows behind `after`, whether there are more). Raises APIError 404:
        there is no `after`."""
        query = f"SELECT * FROM {table} WHERE owner = ? AND {condition}"
        values = [owner, *values]
        if after is not None:
            last = self.execute(
                f"SELECT seq FROM {table} WHERE id = ? AND owner = ?", (after, owner)
            ).fetchone()
            if last is None:
                raise APIError(404, f"after: there is no {shown(after)}", param="after")
            query += f" AND seq {'<' if descending else '>'} ?"
            values.append(last["seq"])
        query += f" ORDER BY seq {'DESC' if descending else 'ASC'} LIMIT ?"
        rows = self.execute(query, [*values, limit + 1]).fetchall()
        return rows[:limit], len(rows) > limit


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return prefix + secrets.token_hex(16)
