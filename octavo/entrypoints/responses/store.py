"""Responses that the server keeps: a bounded number, of bounded bytes, for a bounded time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.event_log import EventLog
from octavo.entrypoints.responses.protocol import Response
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

    def conversation(self) -> list[dict[str, Any]]:
        """All items up to the end of its output."""
        output = msgspec.json.encode(self.response.output)
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
    """The newest ones: the oldest are forgotten. Those that are being made are always kept: their
    number is bounded by the queue.

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
        if self._entries.pop(response_id, None) is not None:
            self._num_bytes -= self._sizes.pop(response_id)

    def _forget(self) -> None:
        oldest = self._clock() - self._max_seconds
        for response_id, entry in list(self._entries.items()):
            if (
                entry.stored_at >= oldest
                and len(self._entries) <= self._max_responses
                and self._num_bytes <= self._max_bytes
            ):
                return
            if entry.task is None or entry.task.done():
                self.drop(response_id)
