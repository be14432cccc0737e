"""The tables of the store, and what becomes of their rows."""

from __future__ import annotations

import secrets
import sqlite3

from octavo.entrypoints.batches.objects import FileObject

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


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return prefix + secrets.token_hex(16)


def file_of(row: sqlite3.Row) -> FileObject:
    """A row of `files`."""
    names = set(FileObject.__struct_fields__) & set(row.keys())
    return FileObject(**{name: row[name] for name in names})
