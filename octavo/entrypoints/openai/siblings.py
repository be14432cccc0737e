"""Requests that only another front end of the same server can answer.

Front end 0 keeps what outlives a request (stored responses, files, batches), and speaks for the
whole server where all front ends must be asked (`ask_all`). A resumable stream is kept by the front
end that began it, and its id says which. Whoever else gets such a request passes it on, unread,
over a socket that only this user may use. The same key is asked for there as here.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import httptools

from octavo.entrypoints.openai.errors import unavailable
from octavo.entrypoints.openai.gate import KEY_HEADERS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from octavo.entrypoints.openai.endpoint import Call
    from octavo.entrypoints.openai.state import Server

OWNED_PATHS = (
    *("/metrics", "/load", "/abort", "/abort_requests"),
    *("/v1/responses", "/v1/files", "/v1/batches"),
)
"""Front end 0 answers these paths and all below them."""

_HOST = (b"host", b"front-end")
_ASKED = "/asked"
"""What the path begins with of a request by `ask_all`."""

_STREAM = re.compile(r"/v1/streams/stream_([0-9]{1,3})_[0-9a-f]+")

FETCH_SECONDS = 5.0
"""How long a sibling may take to answer what another asks of it."""

_HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade", b"expect"),
    }
)
"""Headers of one connection only (RFC 9110, 7.6.1), and what the first server has dealt with."""

_PIECE = 64 * 1024


def owner_of(path: str) -> int | None:
    """Index of the front end that must answer this path; None: any may."""
    if any(path == owned or path.startswith(owned + "/") for owned in OWNED_PATHS):
        return 0
    stream = _STREAM.fullmatch(path)
    return None if stream is None else int(stream[1])


class PassOn:
    """ASGI middleware of one of several front ends.

    Args:
        app: answers what is not passed on.
        addresses: paths of the private Unix sockets of all front ends.
        index: of this one.
        server: this front end's, which goes on as long as a request is passed on.
    """

    def __init__(self, app: ASGIApp, addresses: Sequence[str], index: int, server: Server) -> None:
        self._app = app
        self._addresses = addresses
        self._index = index
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = owner_of(scope["path"]) if scope["type"] == "http" else None
        if owner is None or owner == self._index or owner >= len(self._addresses):
            await self._app(scope, receive, send)
            return
        self._server.num_passed_on += 1
        try:
            await _pass_on(self._addresses[owner], scope, receive, send)
        finally:
            self._server.num_passed_on -= 1


class AnswerSiblings:
    """ASGI middleware of a front end's private socket. What `ask_all` asks there belongs to a
    request that has been let in, counted and logged where it came: here its key is only checked.
    It is known by its path, which no client's request has: `PassOn` passes none on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(_ASKED):
            path = scope["path"].removeprefix(_ASKED)
            scope = {**scope, "path": path, "octavo.is_asked": True}
        await self._app(scope, receive, send)


async def ask_all(call: Call, body: bytes = b"") -> list[bytes]:
    """What the front ends that this one speaks for answer to the same request, as `ask_each`.
    Raises APIError 503: one of them does not."""
    answers = []
    for answer in (await ask_each(call, body)).values():
        if isinstance(answer, OSError):
            raise unavailable(f"a front end is missing: {answer}", "front_end")
        answers.append(answer)
    return answers


async def ask_each(
    call: Call, body: bytes = b"", *, seconds: float = FETCH_SECONDS
) -> dict[str, bytes | OSError]:
    """Ask the front ends that this one speaks for the same request: the same method (GET for a
    HEAD), path and key. Its key pays once, here.

    Returns:
        Path of a front end's private socket → the body of its answer, or why there is none.
    """
    scope = call.scope
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    key = [header for header in scope["headers"] if header[0] in KEY_HEADERS]
    target = _ASKED + scope["path"]

    async def ask(path: str) -> bytes | OSError:
        try:
            return await fetch(path, method, target, key, body, seconds=seconds)
        except OSError as error:
            return error

    paths = call.server.siblings
    return dict(zip(paths, await asyncio.gather(*map(ask, paths))))


async def fetch(
    path: str,
    method: str,
    target: str,
    headers: list[tuple[bytes, bytes]],
    body: bytes = b"",
    *,
    seconds: float = FETCH_SECONDS,
) -> bytes:
    """The body that a sibling answers with. Raises OSError: it cannot be had, or takes longer."""
    try:
        return await asyncio.wait_for(_fetch(path, method, target, headers, body), seconds)
    except asyncio.TimeoutError:
        raise OSError(f"a front end did not answer {target} in {seconds} s") from None


async def _fetch(
    path: str, method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes
) -> bytes:
    answer = _Answer()
    headers = [*headers, _HOST, (b"content-length", b"%d" % len(body))]
    scope = {"method": method, "raw_path": target.encode(), "query_string": b"", "headers": headers}
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(_head(scope, chunked=False) + body)
        data = [event["body"] async for event in _events(reader, answer) if "body" in event]
    finally:
        writer.close()
    if answer.status != 200:
        raise OSError(f"a front end answered {target} with {answer.status}")
    return b"".join(data)


async def _pass_on(path: str, scope: Scope, receive: Receive, send: Send) -> None:
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError:
        error = unavailable("the front end that has this is not there", "front_end")
        await error.response()(scope, receive, send)
        return
    upstream = asyncio.ensure_future(_send_request(scope, receive, writer))
    started = False
    try:
        async for event in _events(reader, _Answer(is_head=scope["method"] == "HEAD")):
            started = True
            await send(event)
    except OSError:
        if not started:
            error = unavailable("the front end that has this broke off", "front_end")
            await error.response()(scope, receive, send)
    finally:
        upstream.cancel()
        await asyncio.gather(upstream, return_exceptions=True)
        writer.close()


async def _send_request(scope: Scope, receive: Receive, writer: asyncio.StreamWriter) -> None:
    """Send the request, then wait for the client to go; when it does, so does the connection."""
    names = {name for name, _ in scope["headers"]}
    chunked = b"content-length" not in names and b"transfer-encoding" in names
    writer.write(_head(scope, chunked=chunked))
    more = True
    with contextlib.suppress(OSError):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                writer.transport.abort()
                return
            body = message.get("body", b"")
            if chunked:
                writer.write(b"%x\r\n%b\r\n" % (len(body), body) if body else b"")
            else:
                writer.write(body)
            if more and not message.get("more_body", False):
                more = False
                writer.write(b"0\r\n\r\n" if chunked else b"")
            await writer.drain()


def _head(scope: Any, *, chunked: bool) -> bytes:
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    lines = [scope["method"].encode() + b" " + target + b" HTTP/1.1"]
    headers = scope["headers"]
    if scope.get("http_version") == "1.0" and all(name != b"host" for name, _ in headers):
        headers = [*headers, _HOST]  # HTTP/1.1 needs one
    lines += [n + b": " + v for n, v in headers if n not in _HOP_BY_HOP]
    lines += [b"connection: close"]
    if chunked:
        lines += [b"transfer-encoding: chunked"]
    return b"\r\n".join([*lines, b"", b""])


async def _events(reader: asyncio.StreamReader, answer: _Answer) -> Any:
    """ASGI messages of an answer. Raises OSError: it broke off."""
    parser = httptools.HttpResponseParser(answer)
    while not answer.complete:
        data = await reader.read(_PIECE)
        if not data:
            raise ConnectionError("the answer broke off")
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ConnectionError(f"the answer is not HTTP: {error}") from None
        if answer.has_head and not answer.status:
            answer.status = parser.get_status_code()
            yield {
                "type": "http.response.start",
                "status": answer.status,
                "headers": answer.headers,
            }
        for body in answer.take():
            yield {"type": "http.response.body", "body": body, "more_body": True}
        if answer.has_head and answer.is_head:
            break
    yield {"type": "http.response.body", "body": b"", "more_body": False}


class _Answer:
    """What httptools tells of a response."""

    def __init__(self, *, is_head: bool = False) -> None:
        self.is_head = is_head
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_head = False
        self.complete = False
        self._body: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in _HOP_BY_HOP:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self.complete = True

    def take(self) -> Iterator[bytes]:
        """The pieces of the body that have come since."""
        pieces, self._body = self._body, []
        yield from pieces
