"""uvicorn, held to our limits, and stopped in our order.

The parser is httptools (llhttp): a streamed chunk costs 12 µs from the application to the socket,
with h11 18 µs (256 streams, uvloop, kernel time included).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from octavo.entrypoints.openai.errors import bad_request
from octavo.errors import EngineDeadError
from octavo.log import get_logger

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from octavo.entrypoints.openai.state import Server

logger = get_logger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers."""
HEAD_TIMEOUT = 30.0
KEEP_ALIVE_TIMEOUT = 75
"""Longer than the 60 s for which clients and proxies usually keep a connection."""
HEALTH_INTERVAL = 0.25
DEAD_LINGER = 2.0
"""After the engine's death the server answers 503 for so long, so that others see it."""
FLUSH_SECONDS = 2.0


class HTTPProtocol(HttpToolsProtocol):
    """One connection: heads are bounded in size and time, and what is no HTTP gets a JSON error."""

    _head_bytes = 0
    _in_head = True
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._begin_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"the head has more than {MAX_HEAD_BYTES} bytes")

    def send_400_response(self, msg: str) -> None:
        body = msgspec.json.encode(bad_request(msg).body)
        head = (
            b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        ) % len(body)
        self.transport.write(STATUS_LINE[400] + head + body)
        self.transport.close()

    def _begin_head(self) -> None:
        self._end_head()
        self._head_bytes = 0
        self._in_head = True
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self.transport.close)

    def _end_head(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _UvicornServer(uvicorn.Server):
    """Leaves signals alone, tells when it listens, and wakes once a second instead of ten times:
    on a small machine the compute threads feel it."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Close the listener and idle connections, and return from `serve`."""
        self.should_exit = True
        self._stop.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._on_ready()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # renews the Date header
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop.wait(), 1.0)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class StopSignal:
    """SIGTERM and SIGINT as something to wait for. The first asks to drain, the second to hurry."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.hurry = asyncio.Event()

    def request(self) -> None:
        """As if a signal came."""
        (self.hurry if self.drain.is_set() else self.drain).set()


async def serve(
    app: ASGIApp,
    server: Server,
    sock: socket.socket,
    stop: StopSignal,
    *,
    drain_seconds: float,
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """Serve until a signal or the engine's death.

    At a signal no request is let in any more (503), those in progress have `drain_seconds` to end,
    and what is left is ended with an error event.

    Returns:
        The process's exit status: 0 after a signal, 1 after the engine's death.
    """
    http = _UvicornServer(_uvicorn_config(app), on_ready)
    serving = asyncio.ensure_future(http.serve(sockets=[sock]))
    stopped = asyncio.ensure_future(stop.drain.wait())
    died = asyncio.ensure_future(_death(server))
    status = 0
    try:
        await asyncio.wait({serving, stopped, died}, return_when=asyncio.FIRST_COMPLETED)
        server.admission.draining = True
        linger = time.monotonic()
        if died.done():
            logger.error("%s", died.result())
            status, linger = 1, linger + DEAD_LINGER
        else:
            logger.warning("stopping: %d requests in progress", server.in_flight)
            await _drained(server, stop, drain_seconds)
        for engine in server.engines.values():
            await engine.shutdown(0.0)
        await _until(lambda: server.in_flight == 0, FLUSH_SECONDS)
        await _until(lambda: time.monotonic() > linger, DEAD_LINGER)
        http.stop()
        await serving
    finally:
        for task in (serving, stopped, died):
            task.cancel()
        await asyncio.gather(serving, stopped, died, return_exceptions=True)
    return status


async def _drained(server: Server, stop: StopSignal, drain_seconds: float) -> None:
    await _until(lambda: server.in_flight == 0 or stop.hurry.is_set(), drain_seconds)


async def _death(server: Server) -> str:
    """Returns when an engine is dead: what it died of."""
    while True:
        for name, engine in server.engines.items():
            try:
                await engine.check_health()
            except EngineDeadError as error:
                return f"{name}: {error}"
        await asyncio.sleep(HEALTH_INTERVAL)


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.02)


def _uvicorn_config(app: Any) -> uvicorn.Config:
    uvicorn_logger = logging.getLogger("uvicorn")
    uvicorn_logger.setLevel(logging.ERROR)  # what is below that, the gate logs
    uvicorn_logger.handlers = get_logger("octavo").handlers
    return uvicorn.Config(
        app,
        http=HTTPProtocol,
        ws="none",
        loop="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_TIMEOUT,
        timeout_graceful_shutdown=int(FLUSH_SECONDS),
    )
