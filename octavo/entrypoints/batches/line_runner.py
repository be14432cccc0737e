"""Running lines: a bounded number at a time, their results stored in groups."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice

from octavo.entrypoints.batches.lines import Line, LineResult

MAX_BYTES_IN_FLIGHT = 64 * 2**20
"""Of lines that are read and not done, all together; one line alone may have more."""

RETRY_SECONDS = 1.0
"""Before lines are tried again that could not be taken."""

_READ_LINES = 64
_READ_BYTES = 2**20

Answer = Callable[[Line], Awaitable[LineResult]]
Commit = Callable[[Sequence[LineResult]], Awaitable[None]]


class NotNowError(Exception):
    """A line cannot be answered now, but perhaps later."""


class LineSlots:
    """Lines that may be in flight, and their bytes. Who asks first gets first: so batches that run
    side by side take turns.

    Attributes:
        num_running: lines in flight.
    """

    def __init__(self, max_lines: int, max_bytes: int = MAX_BYTES_IN_FLIGHT) -> None:
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self.num_running = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def acquire(self, num_bytes: int) -> None:
        """Wait for a place for a line."""
        if not self._waiting and self._fits(num_bytes):
            self._take(num_bytes)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (num_bytes, turn)
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(num_bytes)  # it had just been given
            else:
                self._waiting.remove(entry)
                self._hand_out()
            raise

    def release(self, num_bytes: int) -> None:
        """A line is done."""
        self.num_running -= 1
        self._num_bytes -= num_bytes
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            num_bytes, turn = self._waiting.popleft()
            self._take(num_bytes)
            turn.set_result(None)

    def _fits(self, num_bytes: int) -> bool:
        if not self.num_running:
            return True
        return self.num_running < self._max_lines and self._num_bytes + num_bytes <= self._max_bytes

    def _take(self, num_bytes: int) -> None:
        self.num_running += 1
        self._num_bytes += num_bytes


class GroupCommit:
    """Results that come while others are being stored are stored together after that."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._pending: list[tuple[LineResult, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, result: LineResult) -> None:
        """Returns when the result is stored. Raises what the commit raises."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((result, stored))
        if self._task is None:
            self._task = asyncio.create_task(self._commit_all())
        await stored

    async def drain(self) -> None:
        """Wait until nothing is on its way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _commit_all(self) -> None:
        try:
            while self._pending:
                group, self._pending = self._pending, []
                error: Exception | None = None
                try:
                    await self._commit([result for result, _ in group])
                except Exception as raised:
                    error = raised
                for _, stored in group:
                    if stored.done():
                        continue
                    if error is None:
                        stored.set_result(None)
                    else:
                        stored.set_exception(error)
        finally:
            self._task = None


class LineRunner:
    """Answers the lines of one input and stores the results.

    Args:
        answer: raises NotNowError where the line is to be tried again. Until then it holds no slot:
            others may have it.
        slots: shared with others.
    """

    def __init__(self, answer: Answer, commit: Commit, slots: LineSlots) -> None:
        self._answer = answer
        self._results = GroupCommit(commit)
        self._slots = slots
        self._pending: deque[Line] = deque()  # read, and not begun
        self._is_refused = False  # a line was, since the last pause
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None

    async def run(self, lines: Iterator[Line]) -> None:
        """Returns when all results are stored. Cancelled, it leaves those in flight undone.

        Args:
            lines: is read in threads, one at a time.

        Raises:
            Exception: what `answer` or `commit` raised first.
        """
        try:
            while self._failure is None and await self._has_pending(lines):
                line = self._pending.popleft()
                num_bytes = len(line.data or b"")
                await self._slots.acquire(num_bytes)
                task = asyncio.create_task(self._run_line(line, num_bytes))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            while self._tasks:
                await asyncio.wait(set(self._tasks))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._results.drain()
        if self._failure is not None:
            raise self._failure

    async def _has_pending(self, lines: Iterator[Line]) -> bool:
        """Whether there is a line to begin, now that those are known that have to come again."""
        while self._failure is None:
            if not self._pending:
                self._pending.extend(await asyncio.to_thread(_take, lines))
            if self._is_refused:
                self._is_refused = False
                await asyncio.sleep(RETRY_SECONDS)
            if self._pending or not self._tasks:
                break
            await asyncio.wait(set(self._tasks), return_when=asyncio.FIRST_COMPLETED)
        return bool(self._pending)

    async def _run_line(self, line: Line, num_bytes: int) -> None:
        try:
            if self._failure is None:
                await self._results.add(await self._answer(line))
        except NotNowError:
            self._pending.append(line)
            self._is_refused = True
        except Exception as error:
            self._failure = self._failure or error
        finally:
            self._slots.release(num_bytes)


def _take(lines: Iterator[Line]) -> list[Line]:
    """The next ones; none at the end."""
    taken, num_bytes = [], 0
    for line in islice(lines, _READ_LINES):
        taken.append(line)
        num_bytes += len(line.data or b"")
        if num_bytes >= _READ_BYTES:
            break
    return taken
