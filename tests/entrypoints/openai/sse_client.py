"""Server-sent events as they come, and a connection to be dropped at will."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.entrypoints.openai.harness import Running, chunks, close, request_bytes

DONE = "[DONE]"


@dataclass(frozen=True)
class Event:
    """One event: its id ("" where it has none) and its data."""

    id: str
    data: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def number(self) -> int:
        return int(self.id.rpartition(":")[2])


def parse(body: bytes) -> list[Event]:
    """The events of a whole stream, [DONE] among them."""
    blocks = body.decode().split("\n\n")
    assert blocks.pop() == ""
    events = []
    for block in blocks:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        assert set(lines) <= {"id", "data"}
        events.append(Event(lines.get("id", ""), lines["data"]))
    return events


class Stream:
    """A streamed answer. Leaving it drops the connection."""

    def __init__(self, headers: dict[str, str], pieces: AsyncIterator[bytes]) -> None:
        self.headers = headers
        self._pieces = pieces

    @property
    def id(self) -> str:
        return self.headers["x-stream-id"]

    async def take(self, num: int) -> list[Event]:
        """The first so many events; what came with them is lost."""
        body = b""
        while body.count(b"\n\n") < num:
            body += await self._pieces.__anext__()
        return parse(body[: body.rindex(b"\n\n") + 2])[:num]

    async def rest(self) -> list[Event]:
        """All events, to the end of the stream."""
        return parse(b"".join([piece async for piece in self._pieces]))


@asynccontextmanager
async def streaming(
    s: Running, path: str, body: Any = None, **headers: str
) -> AsyncIterator[Stream]:
    """Send a request, a POST if it has a body, which must be answered with 200."""
    reader, writer = await s.connect()
    try:
        writer.write(request_bytes("GET" if body is None else "POST", path, body, headers))
        status = await reader.readline()
        assert status.split()[1] == b"200", await reader.read(4096)
        found = {}
        while (line := await reader.readline()) != b"\r\n":
            name, _, value = line.decode().partition(":")
            found[name.lower()] = value.strip()
        yield Stream(found, chunks(reader))
    finally:
        await close(writer)


def data_of(events: Sequence[Event]) -> list[Any]:
    """What events say, but for what is another in every answer."""
    said = []
    for event in events:
        value = {"done": True} if event.data == DONE else event.json
        said.append({k: v for k, v in value.items() if k not in ("id", "created")})
    return said
