"""A batch without a server: from a file to a file (`octavo run-batch`).

While it runs, `OUTPUT.part` has the results in the order in which they came:

    SHA256-OF-THE-INPUT
    LINE-NUMBER {result}
    …

Started again with the same input, it goes on behind the last whole line of that. In the end the
results are written in the order of the input, and the part goes.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from octavo.entrypoints.batches.answers import ENDPOINTS, LineAnswers
from octavo.entrypoints.batches.line_runner import LineRunner, LineSlots
from octavo.entrypoints.batches.lines import (
    Line,
    LineError,
    LineResult,
    duplicate_error,
    parse_line,
    read_lines,
    response_line,
)
from octavo.entrypoints.openai.errors import APIError, bad_request
from octavo.errors import ConfigError

_PIECE_BYTES = 2**20


class PartialOutput:
    """The results so far. Its methods block; one thread at a time may call them.

    Args:
        output: where the results are to be in the end.
        digest: of the input.

    Attributes:
        offsets: number of each line that is done → where its result is.

    Raises:
        ConfigError: there are results of another input, or another process writes them.
        OSError: it cannot be written.
    """

    def __init__(self, output: Path, digest: str) -> None:
        self._output = output
        self.path = output.with_name(output.name + ".part")
        self.offsets: dict[int, int] = {}
        self._file = os.fdopen(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o644), "r+b")
        try:
            self._lock()
            self._read(digest.encode() + b"\n")
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{self.path} is being written by another run; wait for its end, or choose another "
                "output"
            ) from None

    def _read(self, header: bytes) -> None:
        """Find what is there; a torn line at the end goes."""
        found = self._file.readline()
        if found.endswith(b"\n") and found != header:
            raise ConfigError(
                f"{self.path} has results of another input; remove it, or choose another output"
            )
        end = len(header)
        if found != header:
            self._file.seek(0)
            self._file.write(header)
        while (line := self._file.readline()).endswith(b"\n"):
            number, _, _ = line.partition(b" ")
            self.offsets[int(number)] = end
            end += len(line)
        self._file.truncate(end)
        self._file.seek(end)

    def add(self, results: Sequence[LineResult]) -> None:
        """Keep results, once and for all."""
        for result in results:
            self.offsets[result.number] = self._file.tell()
            self._file.write(b"%d %s" % (result.number, result.data))
        self._file.flush()
        os.fdatasync(self._file.fileno())

    def finish(self) -> None:
        """Write the output, in the order of the input."""
        temporary = self._output.with_name(self._output.name + ".tmp")
        with temporary.open("wb") as file:
            for number in sorted(self.offsets):
                self._file.seek(self.offsets[number])
                file.write(self._file.readline().partition(b" ")[2])
            file.flush()
            os.fdatasync(file.fileno())
        os.replace(temporary, self._output)
        self.path.unlink()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class LocalBatch:
    """Runs a file's lines; each has its own endpoint, and a wrong one is an error of its own.

    Args:
        max_line_bytes: longest line.
    """

    def __init__(self, answers: LineAnswers, slots: LineSlots, max_line_bytes: int) -> None:
        self._answers = answers
        self._slots = slots
        self._max_line_bytes = max_line_bytes
        self._first_lines: dict[bytes, int] = {}  # digest of a custom_id → the first line with it
        self.num_done = 0
        self.num_failed = 0

    async def run(self, input_file: Path, output: Path) -> None:
        """Returns when the output is there.

        Raises:
            ConfigError, OSError: a file cannot be used.
        """
        digest = await asyncio.to_thread(_digest_of, input_file)
        with _closing(await asyncio.to_thread(PartialOutput, output, digest)) as part:
            self.num_done = len(part.offsets)

            async def commit(results: Sequence[LineResult]) -> None:
                await asyncio.to_thread(part.add, results)
                self.num_done += len(results)
                self.num_failed += sum(r.is_error for r in results)

            with input_file.open("rb") as file:
                lines = self._lines(file, frozenset(part.offsets))
                await LineRunner(self._answer, commit, self._slots).run(lines)
            await asyncio.to_thread(part.finish)

    def _lines(self, file: IO[bytes], done: frozenset[int]) -> Iterator[Line]:
        """The lines without a result; the first line of every custom_id is remembered."""
        for line in read_lines(file, self._max_line_bytes):
            try:
                request = parse_line(line, None, self._max_line_bytes)
                self._first_lines.setdefault(_short(request.custom_id), line.number)
            except LineError:
                pass  # told when it is answered
            if line.number not in done:
                yield line

    async def _answer(self, line: Line) -> LineResult:
        custom_id = None
        try:
            request = parse_line(line, None, self._max_line_bytes)
            custom_id = request.custom_id
            if self._first_lines[_short(custom_id)] != line.number:
                raise duplicate_error(line, custom_id)
            if request.url not in ENDPOINTS:
                endpoints = ", ".join(ENDPOINTS)
                message = f"line {line.number}: there is no {request.url!r} here; there are "
                raise APIError(404, message + endpoints, param="url")
            answer = await self._answers.answer(request.url, bytes(request.body), None)
        except LineError as error:
            failure = bad_request(str(error), error.error.param)
            return _failed(line.number, error.custom_id, failure)
        except APIError as failure:
            return _failed(line.number, custom_id, failure)
        return response_line(line.number, custom_id, *answer)


def _failed(number: int, custom_id: str | None, failure: APIError) -> LineResult:
    return response_line(number, custom_id, failure.status, "", bytes(failure.response().body))


def _short(custom_id: str) -> bytes:
    return hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


@contextmanager
def _closing(part: PartialOutput) -> Iterator[PartialOutput]:
    try:
        yield part
    finally:
        part.close()
