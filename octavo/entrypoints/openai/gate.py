"""What every request passes first: its id, its API key and what that may use, and the count for
/metrics."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any

from octavo.entrypoints.anthropic.errors import error_response
from octavo.entrypoints.openai.cors import refuse_foreign_page
from octavo.entrypoints.openai.errors import APIError, bad_request
from octavo.entrypoints.openai.record import OTHER_ROUTE, RequestRecord
from octavo.errors import shown
from octavo.log import current_request_id, get_logger

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from octavo.entrypoints.openai.state import Server

logger = get_logger(__name__)

OPEN_PATHS = frozenset({"/health", "/", "/dashboard"})
OPEN_FOLDER = "/static/"
"""What the web pages are made of. All other paths, known or not, need a key where the server has
any."""

POLLED_PATHS = frozenset({"/v1/engine/state"})
"""Asked twice a second by every dashboard: logged at level debug where all went well."""

KEY_HEADERS = frozenset({b"authorization", b"x-api-key"})

REQUEST_ID_RULE = "1…128 letters, digits and the characters . _ : -"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_CODING = b"transfer-encoding"

Headers = Iterable[tuple[bytes, bytes]]


def is_request_id(value: str) -> bool:
    """May `value` be a request's id?"""
    return _REQUEST_ID.fullmatch(value) is not None


def is_open(path: str) -> bool:
    """Does a path answer without a key?"""
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


class Gate:
    """ASGI middleware around the whole application.

    A valid X-Request-Id becomes the request's id and is echoed; an invalid one is replaced. The
    application finds in the scope `octavo.request_id`, `octavo.key`, the name of the request's key
    (None without keys), and `octavo.record`, its `RequestRecord`. A part of a request that another
    front end has let in (`siblings.AnswerSiblings`) is neither charged to its key nor counted.

    Args:
        routes: paths that /metrics counts by name; all others are "other".
    """

    def __init__(self, app: ASGIApp, server: Server, routes: frozenset[str]) -> None:
        self._app = app
        self._server = server
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        record = RequestRecord(
            request_id=_request_id(scope["headers"]),
            method=scope["method"] if scope["method"] in _METHODS else "other",
            route=scope["path"] if scope["path"] in self._routes else OTHER_ROUTE,
            headers=scope["headers"],
        )
        scope["octavo.request_id"], scope["octavo.record"] = record.request_id, record
        id_header = (b"x-request-id", record.request_id.encode())

        def send_with_id(message: Any) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = [] if record.key is None else record.key.account.headers()
                message["headers"] = [*message.get("headers", ()), *headers, id_header]
            return send(message)

        token = current_request_id.set(record.request_id)
        try:
            await self._let_in(record, scope, receive, send_with_id)
        finally:
            if not _is_asked(scope):
                self._end(record, scope)
            current_request_id.reset(token)

    async def _let_in(
        self, record: RequestRecord, scope: Scope, receive: Receive, send: Send
    ) -> None:
        key = None
        try:
            _check_host(scope)
            _check_transfer_encoding(scope)
            refuse_foreign_page(scope["method"], scope["headers"], self._server.config)
            if not is_open(scope["path"]) and len(self._server.keys):
                key = self._server.keys.find(_given_key(scope["headers"]))
                if key is None:
                    raise _unauthorized()
                record.key = key
                if not _is_asked(scope):
                    key.account.enter()
        except APIError as error:
            await error_response(error, scope)(scope, receive, send)
            return
        scope["octavo.key"] = None if key is None else key.name
        try:
            await self._app(scope, receive, send)
        finally:
            if key is not None and not _is_asked(scope):
                key.account.leave()

    def _end(self, record: RequestRecord, scope: Scope) -> None:
        server, seconds = self._server, time.monotonic() - record.started
        record.is_over = True
        counts, labels = server.http_requests, (record.route, record.method, record.status)
        counts[labels] = counts.get(labels, 0) + 1
        server.http_seconds_of(record.route).observe(seconds)
        if server.tracing is not None and not record.in_background:
            server.tracing.export(record)
        is_poll = record.route in POLLED_PATHS and record.status == 200
        logger.log(
            logging.DEBUG if is_poll else logging.INFO,
            "%s %s %s %.3fs %s%s",
            scope["method"],
            shown(scope["path"]),
            record.status,
            seconds,
            record.request_id,
            "" if record.key is None else f" {record.key.name}",
            extra={"fields": record.log_fields(seconds)},
        )


def _is_asked(scope: Scope) -> bool:
    """Does a sibling ask this, as a part of a request of its own?"""
    return bool(scope.get("octavo.is_asked"))


def _check_host(scope: Scope) -> None:
    """Raise APIError 400 for no Host in HTTP/1.1, and for more than one (RFC 9112, section 3.2): a
    proxy may have gone by another one."""
    num_hosts = sum(name == b"host" for name, _ in scope["headers"])
    if num_hosts > 1:
        raise bad_request("the request has more than one Host header; send one")
    if not num_hosts and scope["http_version"] != "1.0":
        raise bad_request("the request has no Host header, which HTTP/1.1 needs; send one")


def _check_transfer_encoding(scope: Scope) -> None:
    """Raise APIError 400 for a body that is coded in any way but in chunks, and for chunks in
    HTTP/1.0, which has none: a proxy may have read it otherwise (RFC 9112, section 6.1)."""
    codings = [value.strip().lower() for name, value in scope["headers"] if name == _CODING]
    if not codings:
        return
    headers = {"connection": "close"}
    if codings != [b"chunked"]:
        message = "the transfer encoding must be chunked, and nothing else"
        raise APIError(400, message, headers=headers)
    if scope["http_version"] == "1.0":
        message = "HTTP/1.0 has no transfer encoding; send a content-length"
        raise APIError(400, message, headers=headers)


def _given_key(headers: Headers) -> bytes:
    """The one key in `Authorization: Bearer KEY` or `x-api-key: KEY` (as Anthropic's clients send
    it), or in one header of each; empty: there is none, or they are not the same."""
    bearers, plain = [], []
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            bearers.append(token.strip() if scheme.lower() == b"bearer" else b"")
        elif name == b"x-api-key":
            plain.append(value.strip())
    is_one = len(bearers) <= 1 and len(plain) <= 1 and len({*bearers, *plain}) == 1
    return (bearers or plain)[0] if is_one else b""


def _request_id(headers: Headers) -> str:
    for name, value in headers:
        if name == b"x-request-id" and is_request_id(text := value.decode("latin-1")):
            return text
    return uuid.uuid4().hex


def _unauthorized() -> APIError:
    return APIError(
        401,
        "a valid API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )
