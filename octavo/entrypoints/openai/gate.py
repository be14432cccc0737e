"""What every request passes first: its id, the API key, and the count for /metrics."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
import uuid
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from octavo.entrypoints.openai.errors import APIError
from octavo.errors import shown
from octavo.log import get_logger

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from octavo.entrypoints.openai.state import Server

logger = get_logger(__name__)

OPEN_PATHS = frozenset({"/health"})
"""All other paths, known or not, need a key where the server has any."""

KEY_HEADERS = frozenset({b"authorization", b"x-api-key"})

REQUEST_ID_RULE = "1…128 letters, digits and the characters . _ : -"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
CLIENT_GONE = 499
"""Logged and counted where the client left before there was an answer (nginx's word for it)."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

Headers = Iterable[tuple[bytes, bytes]]


def is_request_id(value: str) -> bool:
    """May `value` be a request's id?"""
    return _REQUEST_ID.fullmatch(value) is not None


class Gate:
    """ASGI middleware around the whole application.

    A valid X-Request-Id becomes the request's id and is echoed; an invalid one is replaced. The
    application finds in the scope `octavo.request_id`, and `octavo.key`, which stands for the
    request's key (None without keys).

    Args:
        routes: paths that /metrics counts by name; all others are "other".
    """

    def __init__(self, app: ASGIApp, server: Server, routes: frozenset[str]) -> None:
        self._app = app
        self._server = server
        self._routes = routes
        self._keys = [_digest(key.encode()) for key in (server.config.api_key or ())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        started = time.monotonic()
        request_id = _request_id(scope["headers"])
        scope["octavo.request_id"] = request_id
        key = _given_key(scope["headers"])
        scope["octavo.key"] = self._name_of(key)
        id_header = (b"x-request-id", request_id.encode())
        status = CLIENT_GONE

        def send_with_id(message: Any) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), id_header]
            return send(message)

        try:
            if scope["path"] in OPEN_PATHS or self._is_authorized(key):
                await self._app(scope, receive, send_with_id)
            else:
                await _unauthorized().response()(scope, receive, send_with_id)
        finally:
            self._count(scope, status)
            logger.info(
                "%s %s %s %.3fs %s",
                scope["method"],
                shown(scope["path"]),
                status,
                time.monotonic() - started,
                request_id,
            )

    def _is_authorized(self, key: bytes | None) -> bool:
        return not self._keys or (key is not None and _any_equal(self._keys, _digest(key)))

    def _name_of(self, key: bytes | None) -> str | None:
        """What stands for a key: the same for the same key, and no way back to it. None where the
        server has no keys: then all requests are of one user."""
        return _digest(key).hex()[:32] if self._keys and key is not None else None

    def _count(self, scope: Scope, status: int) -> None:
        route = scope["path"] if scope["path"] in self._routes else "other"
        method = scope["method"] if scope["method"] in _METHODS else "other"
        counts, key = self._server.http_requests, (route, method, status)
        counts[key] = counts.get(key, 0) + 1


def _any_equal(keys: Sequence[bytes], digest: bytes) -> bool:
    """Is `digest` among `keys`? All are compared, each in constant time."""
    equal = False
    for key in keys:
        equal |= hmac.compare_digest(key, digest)
    return equal


def _digest(key: bytes) -> bytes:
    """Digests are compared, so that the length of a key does not show either."""
    return hashlib.sha256(key).digest()


def _given_key(headers: Headers) -> bytes | None:
    """The one key in `Authorization: Bearer KEY` or `x-api-key: KEY` (as Anthropic's clients send
    it); None: there is none, or more than one."""
    keys = []
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            keys.append(token.strip() if scheme.lower() == b"bearer" else None)
        elif name == b"x-api-key":
            keys.append(value.strip())
    return keys[0] if len(keys) == 1 else None


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
