"""What API keys have used and hold, in memory that all front ends of a server share.

It is a file of rows, one for each name that a key has had, mapped by every front end. A row is
never given to another name. All but a front end's own counts is changed under a lock (`flock`),
which the kernel opens when its holder dies.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from octavo.errors import ConfigError

MAX_NAMES = 2048
"""Of keys, from the start of the server on; twice as many as there may be at a time."""

_NAME_BYTES = 64
_NUMBER_BYTES = 8
_NUM_OF_BUCKETS = 4
_NUM_PER_FRONT_END = 3

NOBODY = "*"
"""Who has what requests without a key hold. No key has this name."""

Numbers: TypeAlias = "memoryview[float]"


def zeros(count: int) -> Numbers:
    """So many numbers that nobody else sees."""
    return memoryview(bytearray(count * _NUMBER_BYTES)).cast("d")


@dataclass(kw_only=True)
class Usage:
    """What one key has used. Without arguments: of a front end alone.

    Attributes:
        requests, tokens: a bucket each: what is missing in it, and since when.
        answering, background, streams: a number per front end: requests that are being answered,
            those that go on behind their answers, and resumable streams that run or are read.
        front_end: index of this one.
        lock: for all but this front end's own numbers.
    """

    requests: Numbers = field(default_factory=partial(zeros, 2))
    tokens: Numbers = field(default_factory=partial(zeros, 2))
    answering: Numbers = field(default_factory=partial(zeros, 1))
    background: Numbers = field(default_factory=partial(zeros, 1))
    streams: Numbers = field(default_factory=partial(zeros, 1))
    front_end: int = 0
    lock: AbstractContextManager[None] = field(default_factory=nullcontext)


class Ledger:
    """See the module.

    Args:
        path: the file, in a private folder; the first front end makes it. None: there is only one
            front end.
        front_end: index of this one. What an earlier one of the same index was doing, it is not.

    Attributes:
        lock: for what several rows hold.

    Raises:
        ConfigError: the file cannot be made.
    """

    def __init__(
        self, path: Path | None = None, *, front_end: int = 0, num_front_ends: int = 1
    ) -> None:
        self.front_end = front_end
        self.num_front_ends = num_front_ends
        self._rows: dict[str, Usage] = {}
        self._file: memoryview | None = None
        self.lock: AbstractContextManager[None] = nullcontext()
        if path is None:
            return
        num_numbers = _NUM_OF_BUCKETS + _NUM_PER_FRONT_END * num_front_ends
        self._row_bytes = _NAME_BYTES + _NUMBER_BYTES * num_numbers
        size = MAX_NAMES * self._row_bytes
        try:
            if front_end == 0:
                path.write_bytes(bytes(size))  # or a full disk would be a signal (SIGBUS) some day
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"{path}, for the use of API keys, cannot be made: {error}") from None
        self._file = memoryview(mmap.mmap(fd, size))
        self.lock = _FileLock(fd)
        with self.lock:
            self._read_rows()
            for usage in self._rows.values():
                for numbers in (usage.answering, usage.background, usage.streams):
                    numbers[front_end] = 0

    def usage(self, name: str) -> Usage:
        """What the key of this name has used. Raises ConfigError: there were too many names."""
        if self._file is None:
            return self._rows.setdefault(name, Usage())
        with self.lock:
            self._read_rows()
            if name not in self._rows:
                if len(self._rows) == MAX_NAMES:
                    raise ConfigError(
                        f"there have been API keys of {MAX_NAMES} names since the server was "
                        "started; restart it"
                    )
                start = len(self._rows) * self._row_bytes
                encoded = name.encode()
                self._file[start : start + len(encoded)] = encoded
                self._read_rows()
        return self._rows[name]

    def num_streams(self) -> int:
        """Of all keys and front ends. To be asked for under the lock."""
        self._read_rows()
        return int(sum(sum(usage.streams) for usage in self._rows.values()))

    def _read_rows(self) -> None:
        """Take in the rows that have come since the last time."""
        if self._file is None:
            return
        while len(self._rows) < MAX_NAMES:
            start = len(self._rows) * self._row_bytes
            row = self._file[start : start + self._row_bytes]
            name = bytes(row[:_NAME_BYTES]).rstrip(b"\0").decode()
            if not name:
                return
            numbers = row[_NAME_BYTES:].cast("d")
            answering, background, streams = (
                numbers[start : start + self.num_front_ends]
                for start in range(_NUM_OF_BUCKETS, len(numbers), self.num_front_ends)
            )
            self._rows[name] = Usage(
                requests=numbers[:2],
                tokens=numbers[2:_NUM_OF_BUCKETS],
                answering=answering,
                background=background,
                streams=streams,
                front_end=self.front_end,
                lock=self.lock,
            )


class _FileLock(AbstractContextManager[None]):
    """Held by one process at a time; for a few microseconds, so that an event loop may wait."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *args: object) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)
