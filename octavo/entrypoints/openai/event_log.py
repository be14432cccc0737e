"""Events of a stream, kept so that they can be read late, or again from any place."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from octavo.entrypoints.openai.errors import APIError

_MOST_AT_ONCE = 64
"""Events that a reader is given together."""


class EventLog:
    """Numbered from 0. When there are too many bytes, the oldest events are forgotten.

    Attributes:
        num_bytes: of the events that are kept.
        num_events: that there have been.
    """

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self.num_events = 0
        self._max_bytes = max_bytes
        self._events: deque[bytes] = deque()
        self._first = 0  # number of the oldest event that is kept
        self._is_closed = False
        self._news = asyncio.Event()

    def append(self, event: bytes) -> None:
        """One more event."""
        self._events.append(event)
        self.num_events += 1
        self.num_bytes += len(event)
        self.shrink(self._max_bytes)
        self._tell()

    def shrink(self, max_bytes: int) -> None:
        """Forget the oldest events, until at most so many bytes are kept."""
        while self.num_bytes > max_bytes:
            self.num_bytes -= len(self._events.popleft())
            self._first += 1

    def close(self) -> None:
        """There will be no more."""
        self._is_closed = True
        self._tell()

    async def read(self, start: int) -> AsyncGenerator[bytes, None]:
        """The events from number `start` on, several at a time, until the log is closed.

        Raises:
            APIError: 410, some of them are forgotten.
        """
        while True:
            if start < self._first:
                raise APIError(
                    410,
                    f"event {start} is not kept any more; the oldest one is {self._first}",
                    code="events_forgotten",
                )
            at = start - self._first
            events = [
                self._events[i] for i in range(at, min(at + _MOST_AT_ONCE, len(self._events)))
            ]
            if events:
                start += len(events)
                yield b"".join(events)
            elif self._is_closed:
                return
            else:
                await self._news.wait()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
