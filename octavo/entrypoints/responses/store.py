"""Responses that the server keeps: a bounded number, of bounded bytes, for a bounded time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.event_log import EventLog
from octavo.entrypoints.responses.protocol import FunctionCallItem, Response
from octavo.errors import shown

MAX_RESPONSES = 1024
MAX_BYTES = 64 * 2**20
MAX_SECONDS = 3600.0
MAX_LOG_BYTES = 4 * 2**20
"""Most bytes of the events of one response."""


@dataclass(kw_only=True)
class StoredResponse:
    """One response, and the conversation that it belongs to.

    Attributes:
        key: name of the API key that it was made with; only that one sees it.
        response: as of now; it still changes while `task` runs.
        input_items: JSON of the items of its own input, each with an id.
        earlier_items: JSON of the items before them.
        log: its events, where it was made in the background.
        task: what makes it, in the background.
        stored_at: seconds, of the clock of the store.
    """

    key: str | None
    response: Response
    input_items: bytes
    earlier_items: bytes
    log: EventLog | None = None
    task: asyncio.Task[None] | None = None
    stored_at: float = 0.0

    @property
    def num_bytes(self) -> int:
        """What it takes: all that is kept is text, or about as long as its text."""
        size = len(self.input_items) + len(self.earlier_items)
        size += self.log.num_bytes if self.log is not None else 0
        return size + len(msgspec.json.encode(self.response))

    @property
    def is_done(self) -> bool:
        """Whether nothing makes it any more."""
        return self.task is None or self.task.done()

    def conversation(self) -> list[dict[str, Any]]:
        """All items up to the end of its output, but for a call that was cut off: it was not made,
        and its arguments are no JSON."""
        output = msgspec.json.encode(
            [
                item
                for item in self.response.output
                if not (isinstance(item, FunctionCallItem) and item.status == "incomplete")
            ]
        )
        items: list[dict[str, Any]] = []
        for part in (self.earlier_items, self.input_items, output):
            items += msgspec.json.decode(part)
        return items

    async def stop(self) -> None:
        """End what makes it."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)


class ResponseStore:
    """The newest ones. Where there are too many, or they are too large, the oldest of the key that
    has the most are forgotten, so that one key does not displace the others'. Those that are being
    made are always kept: their number is bounded by the queue.

    Args:
        clock: seconds, that only grow.
    """

    def __init__(
        self,
        *,
        max_responses: int = MAX_RESPONSES,
        max_bytes: int = MAX_BYTES,
        max_seconds: float = MAX_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._clock = clock
        self._entries: dict[str, StoredResponse] = {}
        self._sizes: dict[str, int] = {}
        self._num_bytes = 0
        self._bytes_of: Counter[str | None] = Counter()  # by key
        self._num_of: Counter[str | None] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: object) -> bool:
        return isinstance(entry, StoredResponse) and entry.response.id in self._entries

    def put(self, entry: StoredResponse) -> None:
        """Keep it, or what it has become."""
        self.drop(entry.response.id)
        entry.stored_at = self._clock()
        self._entries[entry.response.id] = entry
        size = self._sizes[entry.response.id] = entry.num_bytes
        self._num_bytes += size
        self._bytes_of[entry.key] += size
        self._num_of[entry.key] += 1
        self._forget()

    def get(self, response_id: str, key: str | None) -> StoredResponse:
        """The response, if it was made with this key. Raises APIError 404."""
        self._forget()
        entry = self._entries.get(response_id)
        if entry is None or entry.key != key:
            raise APIError(
                404,
                f"there is no response {shown(response_id)}; the server keeps the newest ones for "
                f"{self._max_seconds:.0f} s",
                code="response_not_found",
            )
        return entry

    def drop(self, response_id: str) -> None:
        """Forget it, if it is there."""
        entry = self._entries.pop(response_id, None)
        if entry is None:
            return
        size = self._sizes.pop(response_id)
        self._num_bytes -= size
        self._bytes_of[entry.key] -= size
        self._num_of[entry.key] -= 1
        if not self._num_of[entry.key]:
            del self._num_of[entry.key], self._bytes_of[entry.key]

    def _forget(self) -> None:
        oldest = self._clock() - self._max_seconds
        for response_id, entry in list(self._entries.items()):
            if entry.stored_at >= oldest:
                break
            if entry.is_done:
                self.drop(response_id)
        while len(self._entries) > self._max_responses and self._forget_oldest(self._num_of):
            pass
        while self._num_bytes > self._max_bytes and self._forget_oldest(self._bytes_of):
            pass

    def _forget_oldest(self, used: Counter[str | None]) -> bool:
        """Forget the oldest one of the key that uses most, of those with one that can be."""
        for key, _ in used.most_common():
            for response_id, entry in self._entries.items():
                if entry.key == key and entry.is_done:
                    self.drop(response_id)
                    return True
        return False
