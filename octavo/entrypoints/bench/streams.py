"""A client that streams completions and costs little: the server is measured, not the client.

HTTP/1.1 spoken on raw sockets. Events are counted, not parsed: a line that begins with `data: ` is
one (JSON has no raw newlines), and only the last of a stream is decoded, for its usage.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from octavo.entrypoints.http_client import Endpoint, api_error

_EVENT = b"\ndata: "
_DONE = b"\ndata: [DONE]"
_END = b"\r\n0\r\n\r\n"
_TAIL_BYTES = 4096
_MAX_HEAD_BYTES = 65536


@dataclass(slots=True)
class StreamResult:
    """What one request brought.

    Attributes:
        start: `time.perf_counter()` when it was sent.
        arrivals: (time, number of events) of every read that brought some; without the last two
            events, which are the usage and the end.
        error: None where it ended as it should.
    """

    start: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    end: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def num_events(self) -> int:
        """Events that brought text."""
        return sum(n for _, n in self.arrivals)


def request_bytes(endpoint: Endpoint, path: str, body: Any) -> bytes:
    """A whole POST."""
    data = json.dumps(body).encode()
    headers = {**endpoint.headers, "Content-Length": len(data)}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {endpoint.prefix}{path} HTTP/1.1\r\n{head}\r\n".encode() + data


class Connections:
    """Connections to one endpoint, kept open between requests."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._idle: list[_Connection] = []

    async def stream(self, request: bytes) -> StreamResult:
        """Send a request (`request_bytes`) for a stream that ends with its usage, and read it to
        the end. What goes wrong is in the result. A kept connection that the server closed at
        this very moment is replaced."""
        while True:
            try:
                connection = await self._open()
            except OSError as error:
                now = time.perf_counter()
                return StreamResult(now, end=now, error=f"cannot connect: {error}")
            is_kept = connection.num_requests > 0
            result = await connection.stream(request)
            if connection.is_open:
                self._idle.append(connection)
            if not (is_kept and result.error and connection.is_unanswered):
                return result

    async def _open(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        endpoint = self._endpoint
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            _Connection, endpoint.host, endpoint.port, ssl=endpoint.ssl
        )
        return connection

    def close(self) -> None:
        """Close what is idle."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()


class _Connection(asyncio.Protocol):
    """One connection, with at most one request on it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._result: StreamResult | None = None
        self._ended: asyncio.Future[None] | None = None
        self._head: bytes | None = None  # what was read of it, while it is not whole
        self._status = 0
        self._body_bytes = 0  # of an answer that is no stream
        self._last = b""  # the end of what was read
        self.num_requests = 0
        self.is_unanswered = True  # nothing has come for the last request

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def stream(self, request: bytes) -> StreamResult:
        """Send `request` and read its stream."""
        assert self._transport is not None
        self._head, self._last = b"", b"\n"
        self.num_requests += 1
        self.is_unanswered = True
        self._ended = asyncio.get_running_loop().create_future()
        self._result = result = StreamResult(time.perf_counter())
        self._transport.write(request)
        try:
            await self._ended
        except asyncio.CancelledError:
            self._fail("cancelled")
            raise
        return result

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()

    # ---------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        result = self._result
        if result is None:  # nobody asked
            self.close()
            return
        self.is_unanswered = False
        if self._head is not None:
            head, blank, data = (self._head + data).partition(b"\r\n\r\n")
            if not blank:
                self._head = head
                if len(head) > _MAX_HEAD_BYTES:
                    self._fail("what answers does not speak HTTP")
                return
            self._head = None
            self._read_head(head)
        num_events = (self._last[1 - len(_EVENT) :] + data).count(_EVENT)
        if num_events:
            result.arrivals.append((now, num_events))
        self._last = data if len(data) >= _TAIL_BYTES else (self._last + data)[-_TAIL_BYTES:]
        if self._status != 200:
            self._read_error(len(data))
        elif self._last.endswith(_END) and _DONE in self._last:
            self._end(now)

    def connection_lost(self, error: Exception | None) -> None:
        if self._result is None:
            return
        if self._status == 200 and _DONE in self._last:  # a server that does not send chunks
            self._end(time.perf_counter())
        else:
            self._fail(f"the connection was lost: {error or 'closed by the server'}")

    # ---------------------------------------------------------------- ends

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        status = first.split()[1:2]
        self._status = int(status[0]) if status and status[0].isdigit() else 0
        lengths = [line[15:] for line in lines if line[:15].lower() == b"content-length:"]
        self._body_bytes = int(lengths[0]) if lengths and lengths[0].strip().isdigit() else 0

    def _read_error(self, num_bytes: int) -> None:
        """More of an answer that is no stream."""
        self._body_bytes -= num_bytes
        if self._body_bytes <= 0:
            self._fail(str(api_error(self._last.strip(), self._status)))

    def _end(self, now: float) -> None:
        result = self._result
        assert result is not None
        result.end = now
        events = [e.split(b"\n", 1)[0] for e in self._last.split(_EVENT)[1:]]
        _drop_last(result.arrivals, 2)
        try:
            body = json.loads(events[-2])
            if "error" in body:
                result.error = str(api_error(body, self._status))
            else:
                result.prompt_tokens = int(body["usage"]["prompt_tokens"])
                result.output_tokens = int(body["usage"]["completion_tokens"])
        except (IndexError, ValueError, KeyError, TypeError):
            result.error = "the stream did not end with its usage"
        self._wake()

    def _fail(self, error: str) -> None:
        if self._result is not None:
            self._result.end = time.perf_counter()
            self._result.error = error
        self.close()
        self._wake()

    def _wake(self) -> None:
        self._result = None
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


def _drop_last(arrivals: list[tuple[float, int]], count: int) -> None:
    while count and arrivals:
        when, events = arrivals.pop()
        if events > count:
            arrivals.append((when, events - count))
            return
        count -= events
