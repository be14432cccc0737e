"""What is around a handler: the body read within limits, giving up when the client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect

from octavo.contracts.messages import ServiceClass
from octavo.entrypoints.openai.errors import APIError, unavailable
from octavo.entrypoints.openai.parsing import parse_query
from octavo.entrypoints.openai.sse import EventStream
from octavo.errors import shown
from octavo.log import get_logger

if TYPE_CHECKING:
    import msgspec
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from octavo.entrypoints.openai.admission import Ticket
    from octavo.entrypoints.openai.api_route import APIRoute
    from octavo.entrypoints.openai.record import RequestRecord
    from octavo.entrypoints.openai.state import Server

logger = get_logger(__name__)


Q = TypeVar("Q", bound="msgspec.Struct")


@dataclass(kw_only=True)
class Call:
    """One request on its way.

    Attributes:
        body: of a route that takes JSON; else b"".
        receive: for a handler that reads the body itself.
    """

    server: Server
    request_id: str
    scope: Scope
    receive: Receive
    body: bytes
    ticket: Ticket
    service_class: ServiceClass = ServiceClass.INTERACTIVE

    @property
    def record(self) -> RequestRecord:
        """What the server knows of the request, whose it is for instance."""
        record: RequestRecord = self.scope["octavo.record"]
        return record

    def take_body(self) -> bytes:
        """The body, which is not kept: a request may take long, and have many bytes."""
        self.ticket.body_done()
        body, self.body = self.body, b""
        return body

    @property
    def path_params(self) -> dict[str, str]:
        """What stands in the path where the route has names."""
        params: dict[str, str] = self.scope["path_params"]
        return params

    def header(self, name: str) -> str:
        """The last header of this name (in small letters), "" where there is none."""
        headers = {n: value for n, value in self.scope["headers"] if n == name.encode()}
        return str(headers.get(name.encode(), b"").decode("latin-1"))

    def query(self, kind: type[Q]) -> Q:
        """The query's parameters. Raises APIError 400: one is wrong, unknown, or given twice."""
        return parse_query(self.scope["query_string"], kind)


Handler = Callable[[Call], Awaitable["Response | EventStream"]]


class Endpoint:
    """An ASGI application that answers the requests of one route."""

    def __init__(self, server: Server, route: APIRoute) -> None:
        self._server = server
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server, route = self._server, self._route
        scope["octavo.record"].route = route.path.replace(":path}", "}")
        with server.admission.enter(scope["octavo.record"], queued=route.queued) as ticket:
            server.in_flight += 1
            try:
                body = b""
                if route.request is not None:
                    check_encoding(scope)
                if route.takes_json:
                    check_media_type(scope)
                    body = await self._read_body(scope, receive, ticket)
                call = Call(
                    server=server,
                    request_id=scope["octavo.request_id"],
                    scope=scope,
                    receive=receive,
                    body=body,
                    ticket=ticket,
                )
                await self._answer(call, send)
            except ClientDisconnect:
                logger.info("%s: the client went away", scope["octavo.request_id"])
            except asyncio.CancelledError:  # by the end of the server
                if not server.admission.draining or scope["octavo.record"].has_begun:
                    raise
                raise unavailable("the server is stopping", "draining") from None
            finally:
                server.in_flight -= 1

    async def _read_body(self, scope: Scope, receive: Receive, ticket: Ticket) -> bytes:
        config = self._server.config
        try:
            return await asyncio.wait_for(
                read_body(scope, receive, config.max_request_bytes, ticket.add_body),
                config.body_timeout,
            )
        except asyncio.TimeoutError:
            headers = {"connection": "close"}
            raise APIError(408, "the body did not arrive in time", headers=headers) from None

    async def _answer(self, call: Call, send: Send) -> None:
        stream: EventStream | None = None

        async def work() -> None:
            nonlocal stream
            response = await self._route.handler(call)
            if isinstance(response, EventStream):
                stream = response
            await response(call.scope, call.receive, send)

        def is_stalled() -> bool:
            return stream is not None and stream.blocked_for() > self._server.config.stall_timeout

        if self._route.request is not None and not self._route.takes_json:
            await work()  # the handler receives
            return
        await while_connected(
            work(),
            call.receive,
            is_stalled=is_stalled,
            check_seconds=self._server.config.stall_timeout / 2,
        )


async def while_connected(
    work: Coroutine[Any, Any, None],
    receive: Receive,
    *,
    is_stalled: Callable[[], bool],
    check_seconds: float,
) -> None:
    """Run `work`; cancel it when the client disconnects or takes nothing for too long.

    Raises:
        ClientDisconnect: it was cancelled. Otherwise what `work` raises.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnect(receive))
    try:
        while not task.done():
            await asyncio.wait(
                (task, watch), timeout=check_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not task.done() and (watch.done() or is_stalled()):
                raise ClientDisconnect
        task.result()
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def check_encoding(scope: Scope) -> None:
    """Raise APIError 415 for a compressed body."""
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.strip().lower() != b"identity":
            raise APIError(415, "a compressed body is not supported; send it plain")


def check_media_type(scope: Scope) -> None:
    """Raise APIError 415 unless the body is JSON."""
    headers = dict(scope["headers"])
    media_type = headers.get(b"content-type", b"application/json").partition(b";")[0]
    media_type = media_type.strip().lower()
    if media_type != b"application/json" and not (
        media_type.startswith(b"application/") and media_type.endswith(b"+json")
    ):
        raise APIError(
            415,
            f"unsupported content type {shown(media_type.decode('latin-1'))}; send "
            "'Content-Type: application/json'",
            code="unsupported_content_type",
        )


async def read_body(
    scope: Scope, receive: Receive, limit: int, account: Callable[[int], None]
) -> bytes:
    """The whole body.

    Raises:
        APIError: 413, it has more than `limit` bytes; or what `account`, which is told the length
            of every piece, raises.
        ClientDisconnect: the client went away.
    """
    for name, value in scope["headers"]:
        if limit and name == b"content-length" and int(value) > limit:
            raise _too_large(limit)
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        size += len(part)
        if limit and size > limit:
            raise _too_large(limit)
        account(len(part))
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def _too_large(limit: int) -> APIError:
    headers = {"connection": "close"}  # or the rest would have to be read
    message = f"the body has more than {limit} bytes"
    return APIError(413, message, code="request_too_large", headers=headers)
