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
from typing import TYPE_CHECKING, Any, ClassVar

import httptools
import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from octavo.entrypoints.openai.errors import bad_request
from octavo.entrypoints.openai.idle_connections import IdleConnections, most_connections
from octavo.errors import EngineDeadError, EngineUnresponsiveError
from octavo.log import get_logger

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from octavo.entrypoints.openai.front_ends import FrontEnds
    from octavo.entrypoints.openai.state import Server
    from octavo.entrypoints.openai.stop_signal import StopSignal
    from octavo.entrypoints.openai.tls import ServerTLS

logger = get_logger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers."""
HEAD_TIMEOUT = 30.0
LINGER_SECONDS = 10.0
"""How long the rest of a body may take to come after its request was answered."""
MAX_PIPELINE = 100
"""Requests that wait behind the one that is answered, on one connection."""
_PIECE = 16 * 1024  # bytes parsed at a time: how exact the limits above are
KEEP_ALIVE_TIMEOUT = 75
"""Longer than the 60 s for which clients and proxies usually keep a connection."""
HEALTH_INTERVAL = 0.25
DEAD_LINGER = 2.0
"""After the engine's death the server answers 503 for so long, so that others see it."""
FLUSH_SECONDS = 2.0


class _Transport:
    """A transport as uvicorn uses it, that can be closed safely.

    Writing after the other side has gone does nothing (uvloop raises). Closing while a request's
    body still comes says that nothing more will be sent, and goes on reading for a while: with
    unread data the kernel would send a reset, which may overtake the answer.
    """

    def __init__(self, transport: asyncio.Transport, is_receiving: Callable[[], bool]) -> None:
        self._transport = transport
        self._is_receiving = is_receiving
        self._is_lingering = False
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def is_closing(self) -> bool:
        return self._is_lingering or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if not self.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close, or, where the rest of a body is on its way, begin to. The second call closes."""
        if self.is_closing() or not self._is_receiving():
            self._transport.close()
            return
        self._is_lingering = True
        if self._transport.can_write_eof():  # TLS cannot
            self._transport.write_eof()
        self._transport.resume_reading()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.close)


class _UnchunkedCycle(RequestResponseCycle):
    """A response to HTTP/1.0, which knows no chunks: a body without a length ends with the
    connection."""

    _has_length = True

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            names = [name.lower() for name, _ in message.get("headers", ())]
            self._has_length = b"content-length" in names
            if not self._has_length:
                self.chunked_encoding = False
        elif not self._has_length:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class HTTPProtocol(HttpToolsProtocol):
    """One connection. Heads are bounded in size and time, so is all that is neither head nor body
    (chunk extensions, trailers, which are dropped) and a body that nobody wants any more; what is
    no HTTP gets a JSON error; a wish to upgrade is ignored, as HTTP allows."""

    connections_of_process: ClassVar = IdleConnections()

    _piece_size = 0
    _num_idle_bytes = 0  # received since the request began or since the last piece of its body
    _in_head = True
    _in_message = False
    _timer: asyncio.TimerHandle | None = None  # of the head, or of the body after the answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Transport(transport, self._has_unwanted_body))  # type: ignore[arg-type]
        self._begin_head()
        self.connections_of_process.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections_of_process.closed(self)
        self._set_timer(None)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._begin_head()
        self._in_message = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_head = False
        self._set_timer(None)
        self.connections_of_process.busy(self)
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":
            self.cycle.__class__ = _UnchunkedCycle

    def on_body(self, body: bytes) -> None:
        self._num_idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_message = False
        if self.cycle.response_complete:
            self._set_timer(None)
            if self.transport.is_closing():
                self.transport.close()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        is_pipelined = not self.cycle.response_complete  # then the next request has begun
        if not is_pipelined and not self.transport.is_closing():
            self.connections_of_process.idle(self)
        if self._has_unwanted_body() and not self.transport.is_closing():
            self._set_timer(LINGER_SECONDS)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            if self.parser is None:
                return
            self._feed(data if len(data) <= _PIECE else data[start : start + _PIECE])

    def _feed(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._num_idle_bytes += len(data)
        self._piece_size = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("this is not valid HTTP")
        else:
            if self._in_message and self._num_idle_bytes > MAX_HEAD_BYTES:
                self.send_400_response(f"the head or trailer has more than {MAX_HEAD_BYTES} bytes")
            elif len(self.pipeline) > MAX_PIPELINE:
                self.send_400_response(f"more than {MAX_PIPELINE} requests in a pipeline")

    def _ignore_upgrade(self, rest: bytes) -> None:
        """httptools takes the body after a wish to upgrade for the other protocol: read the
        request again without the wish. (curl --http2 and Java's client always have one.)"""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("this server is no proxy")
            return
        version = self.parser.get_http_version().encode()
        lines = [method + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._feed(b"\r\n".join([*lines, b"", rest]))

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request, and close; where another answer is due, only close."""
        cycle = self.cycle
        if (
            cycle is None
            or (cycle.response_complete and not self._has_unwanted_body())
            or not (cycle.response_started or self._in_head or self.pipeline)
        ):
            body = msgspec.json.encode(bad_request(msg).body)
            head = (
                b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            ) % len(body)
            self.transport.write(STATUS_LINE[400] + head + body)
        self._in_message = False
        self.transport.close()

    def _begin_head(self) -> None:
        self._num_idle_bytes = self._piece_size
        self._in_head = True
        self._set_timer(HEAD_TIMEOUT)

    def _has_unwanted_body(self) -> bool:
        """Was the request answered before all of it had come?"""
        return self._in_message and not self._in_head and self.cycle.response_complete

    def _set_timer(self, seconds: float | None) -> None:
        """Close the connection after so many seconds."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.drop)

    def drop(self) -> None:
        """Close the connection, whatever may still come."""
        self._in_message = False
        self.transport.close()


class _UvicornServer(uvicorn.Server):
    """Leaves signals alone, tells when it listens, and wakes once a second instead of ten times:
    on a small machine the compute threads feel it."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None] = lambda: None) -> None:
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


async def serve(
    app: ASGIApp,
    server: Server,
    sock: socket.socket,
    stop: StopSignal,
    *,
    drain_seconds: float,
    on_ready: Callable[[], None] = lambda: None,
    private: tuple[ASGIApp, socket.socket] | None = None,
    others: FrontEnds | None = None,
    tls: ServerTLS | None = None,
) -> int:
    """Serve until a signal or the engine's death.

    At a signal no request is let in any more (503), those in progress have `drain_seconds` to end,
    and what is left is ended with an error event.

    Args:
        private: what the server's other front ends call, and where.
        others: the front ends that this one keeps; they stop with it.
        tls: for `sock`; None: connections are in the clear.

    Returns:
        The process's exit status: 0 after a signal, 1 after the engine's death.
    """
    HTTPProtocol.connections_of_process.most = most_connections()
    https: list[_UvicornServer] = []
    servings: list[asyncio.Task[None]] = []

    def listen(http: _UvicornServer, sock: socket.socket) -> None:
        https.append(http)
        servings.append(asyncio.create_task(http.serve(sockets=[sock])))

    listen(_UvicornServer(_uvicorn_config(app, tls), on_ready), sock)
    if private is not None:
        listen(_UvicornServer(_uvicorn_config(private[0])), private[1])
    if others is not None:
        others.take_over = lambda sock: listen(_UvicornServer(_uvicorn_config(app, tls)), sock)
    batches = None if server.batches is None else asyncio.ensure_future(server.batches.run())
    stopped = asyncio.ensure_future(stop.drain.wait())
    died = asyncio.ensure_future(_death(server, others))
    status = 0
    try:
        await asyncio.wait({*servings, stopped, died}, return_when=asyncio.FIRST_COMPLETED)
        server.admission.draining = True
        if batches is not None:
            batches.cancel()  # they go on after the next start
        linger = time.monotonic()
        if died.done():
            logger.error("%s", died.result())
            status, linger = 1, linger + DEAD_LINGER
        else:
            logger.warning("stopping: %d requests in progress", server.in_flight)
            await _drained(server, others, stop, drain_seconds)
        if others is not None:
            await others.close()
        for engine in server.engines.values():
            await engine.shutdown(0.0)
        await _until(lambda: server.is_idle, FLUSH_SECONDS)
        await _until(lambda: time.monotonic() > linger, DEAD_LINGER)
        for http in https:
            http.stop()
        await asyncio.gather(*servings)
    finally:
        tasks = [*servings, stopped, died, *([] if batches is None else [batches])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _until(lambda: server.is_idle, FLUSH_SECONDS)  # who was cancelled tidies up
        if server.batches is not None:
            await server.batches.close()
        if server.tracing is not None:
            await asyncio.to_thread(server.tracing.shutdown)
    return status


async def _drained(
    server: Server, others: FrontEnds | None, stop: StopSignal, drain_seconds: float
) -> None:
    if others is not None:
        others.drain()

    def done() -> bool:
        idle = server.is_idle and (others is None or others.running == 0)
        return idle or stop.hurry.is_set()

    await _until(done, drain_seconds)


async def _death(server: Server, others: FrontEnds | None) -> str:
    """Returns when the server cannot go on: what an engine died of (one that is unresponsive may
    come back), or that another front end cannot be kept running."""
    while True:
        if others is not None and others.failed.is_set():
            return "a front end ends as often as it is started"
        for name, engine in server.engines.items():
            try:
                with contextlib.suppress(EngineUnresponsiveError):
                    await engine.check_health()
            except EngineDeadError as error:
                return f"{name}: {error}"
        await asyncio.sleep(HEALTH_INTERVAL)


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.02)


def _uvicorn_config(app: Any, tls: ServerTLS | None = None) -> uvicorn.Config:
    uvicorn_logger = logging.getLogger("uvicorn")
    uvicorn_logger.setLevel(logging.ERROR)  # what is below that, the gate logs
    uvicorn_logger.handlers = get_logger("octavo").handlers
    config = uvicorn.Config(
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
    config.load()
    config.ssl = None if tls is None else tls.context
    return config
