"""One batch, from its validation to its last status.

    validating ─► in_progress ─► finalizing ─► completed
        │              │
        ▼              ▼ cancelled, or its time is over: lines that have not run become errors
      failed      cancelling ─► cancelled  /  expired

All that is lasting is in the store: a batch is taken up wherever it was left.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

from octavo.entrypoints.batches.errors import FileLostError, StorageFullError, storage_error
from octavo.entrypoints.batches.jobs import Job
from octavo.entrypoints.batches.line_runner import LineRunner
from octavo.entrypoints.batches.lines import (
    Line,
    LineError,
    LineResult,
    duplicate_error,
    error_line,
    parse_line,
    read_lines,
    response_line,
)
from octavo.entrypoints.batches.objects import BatchError, BatchErrors
from octavo.entrypoints.openai.errors import APIError
from octavo.log import get_logger

if TYPE_CHECKING:
    from octavo.entrypoints.batches.service import BatchService

logger = get_logger(__name__)

MAX_LINES = 50_000
MAX_ERRORS = 100
"""Of a batch's input that are told."""

_GIVE_UP_LINES = 1000
_GIVEN_UP = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "The batch was cancelled before this request was executed.",
}


class InvalidInputError(Exception):
    """The input is no batch. `errors`: why."""

    def __init__(self, errors: list[BatchError]) -> None:
        super().__init__(errors[0].message)
        self.errors = errors


def validate(path: Path, endpoint: str, max_line_bytes: int) -> int:
    """Check a whole input, before anything runs.

    Returns:
        The number of its lines.

    Raises:
        InvalidInputError: lines that are no requests for the endpoint, or share a custom_id; no
            lines, or too many.
        FileLostError, OSError: it cannot be read.
    """
    errors: list[BatchError] = []
    seen: set[bytes] = set()  # digests: 50,000 ids may be long
    total = 0
    with _open(path) as file:
        for line in read_lines(file, max_line_bytes):
            total += 1
            if total > MAX_LINES:
                message = f"the file has more than {MAX_LINES} requests"
                raise InvalidInputError([BatchError("too_many_requests", message)])
            try:
                request = parse_line(line, endpoint, max_line_bytes)
                digest = hashlib.blake2b(
                    request.custom_id.encode("utf-8", "surrogatepass"), digest_size=16
                ).digest()
                if digest in seen:
                    raise duplicate_error(line, request.custom_id)
                seen.add(digest)
            except LineError as error:
                errors.append(error.error)
                if len(errors) == MAX_ERRORS:
                    break
    if not total:
        errors.append(BatchError("empty_file", "the file has no requests"))
    if errors:
        raise InvalidInputError(errors)
    return total


def _open(path: Path) -> IO[bytes]:
    """An input. Raises FileLostError."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise _lost_input(path) from None


def _lost_input(path: Path) -> FileLostError:
    message = f"the content of the input file {path.name} is lost; upload it again, as a new batch"
    return FileLostError(message, "input_file_id")


class BatchRun:
    """A batch while it runs.

    Attributes:
        num_left: lines without a result.
    """

    def __init__(self, service: BatchService, job: Job) -> None:
        self._service = service
        self._job = job
        self._stop = asyncio.Event()
        self.num_left = job.num_left

    def is_to_end(self, job: Job, now: float) -> bool:
        """Is it not to run any line, as its row is now?"""
        return job.status == "cancelling" or (job.status != "finalizing" and now >= job.expires_at)

    def stop(self) -> None:
        """Begin no line any more, and abort those in flight."""
        self._stop.set()

    async def run(self) -> None:
        """Bring the batch to its end. Cancelled, it leaves it to whoever takes it up again. Raises
        APIError: the store cannot be used."""
        job = self._job
        try:
            await self._run()
            return
        except InvalidInputError as error:
            reasons = error.errors
        except LineError as error:  # valid when it began: --max-request-bytes was larger then
            reasons = [error.error]
        except StorageFullError as error:
            reasons = [BatchError("storage_full", error.message)]
        except FileLostError as error:
            logger.error("%s failed: %s", job.id, error)
            reasons = [BatchError("file_not_found", str(error), param=error.param)]
        except OSError as error:  # an input that cannot be read
            raise storage_error(error) from error
        except APIError:  # the store cannot be used now: whoever takes the batch up again may
            raise
        except Exception:
            logger.exception("%s failed", job.id)
            message = "the server failed on this batch; its log says more"
            reasons = [BatchError("internal_error", message)]
        errors = BatchErrors(data=reasons)
        await self._service.call(lambda store: store.jobs.end(job.id, "failed", errors))

    async def _run(self) -> None:
        call, job = self._service.call, self._job
        path = await call(lambda store: store.files.path_of(job.input_file_id))
        job = await self._refresh()
        if job.status == "validating" and not self._stop.is_set():
            total = await asyncio.to_thread(
                validate, path, job.endpoint, self._service.max_line_bytes
            )
            await call(lambda store: store.jobs.start(job.id, total))
            job = await self._refresh()
        if job.status == "in_progress" and not self._stop.is_set():
            await self._run_lines(path)
            job = await self._refresh()
        if job.status == "in_progress" and not job.num_left:
            await call(lambda store: store.jobs.finalize(job.id))
            job = await self._refresh()
        if job.status == "finalizing":
            await call(lambda store: store.jobs.end(job.id, "completed"))
            return
        is_cancelled = job.status == "cancelling"
        if job.total:
            await self._give_up(path, "batch_cancelled" if is_cancelled else "batch_expired")
        await call(lambda store: store.jobs.end(job.id, "cancelled" if is_cancelled else "expired"))

    async def _refresh(self) -> Job:
        """The row as it is now, and whether it says to stop."""
        job = self._job = await self._service.call(lambda store: store.jobs.get(self._job.id))
        now = await self._service.call(lambda store: store.now)
        if self.is_to_end(job, now):
            self.stop()
        return job

    async def _run_lines(self, path: Path) -> None:
        """Run the lines that have no result, until all have one or `stop`."""
        done = await self._service.call(lambda store: store.jobs.done_lines(self._job.id))
        self.num_left = self._job.num_left
        runner = LineRunner(self._answer, self._store_results, self._service.slots)
        with _open(path) as file:
            lines = read_lines(file, self._service.max_line_bytes, without=done)
            running = asyncio.ensure_future(runner.run(lines))
            stopped = asyncio.ensure_future(self._stop.wait())
            try:
                await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()
                    if self.num_left:
                        raise _lost_input(path)
            finally:
                running.cancel()
                stopped.cancel()
                await asyncio.gather(running, stopped, return_exceptions=True)

    async def _answer(self, line: Line) -> LineResult:
        request = parse_line(line, self._job.endpoint, self._service.max_line_bytes)
        answer = await self._service.answers.answer(
            request.url, bytes(request.body), self._job.owner or None
        )
        return response_line(line.number, request.custom_id, *answer)

    async def _store_results(self, results: Sequence[LineResult]) -> None:
        await self._service.call(lambda store: store.jobs.add_results(self._job.id, results))
        self.num_left -= len(results)
        failed = sum(result.is_error for result in results)
        self._service.num_finished["failed"] += failed
        self._service.num_finished["completed"] += len(results) - failed

    async def _give_up(self, path: Path, code: str) -> None:
        """An error for every line without a result."""
        done = await self._service.call(lambda store: store.jobs.done_lines(self._job.id))
        endpoint, max_bytes = self._job.endpoint, self._service.max_line_bytes
        with _open(path) as file:
            lines = read_lines(file, max_bytes, without=done)
            while some := await asyncio.to_thread(_take_errors, lines, endpoint, max_bytes, code):
                await self._store_results(some)


def _take_errors(
    lines: Iterator[Line], endpoint: str, max_bytes: int, code: str
) -> list[LineResult]:
    """Errors for the next lines; none at the end."""
    results = []
    for line in islice(lines, _GIVE_UP_LINES):
        custom_id = parse_line(line, endpoint, max_bytes).custom_id
        results.append(error_line(line.number, custom_id, code, _GIVEN_UP[code]))
    return results
