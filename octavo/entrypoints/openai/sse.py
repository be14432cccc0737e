"""Server-sent events: a generator of encoded events as an ASGI response.

The status is sent with the first event, so that whatever fails before it is an HTTP error and not
a stream; what fails later is an error event. In OpenAI's older APIs, both end with `data: [DONE]`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.entrypoints.openai.errors import APIError, as_api_error
from octavo.log import get_logger

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = get_logger(__name__)

DONE = b"data: [DONE]\n\n"
_END = b"\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_encode = msgspec.json.Encoder().encode


def event(body: Any) -> bytes:
    """A struct as one event."""
    return b"data: " + _encode(body) + b"\n\n"


def named_event(body: Any) -> bytes:
    """A struct with a tag as one event, whose name is the tag too."""
    return b"event: " + body.__struct_config__.tag.encode() + b"\n" + event(body)


def split_events(data: bytes) -> list[bytes]:
    """Whole events that were sent together, each by itself: the JSON in them has no line ends."""
    return [part + _END for part in data.split(_END)[:-1]]


def openai_failure(error: APIError) -> bytes:
    """The event of what fails later, in OpenAI's older APIs."""
    return event(error.body)


class EventStream:
    """An ASGI response.

    Args:
        events: whole events, one or more at a time.
        failure: the event of an error.
        done: what all ends with.
        headers: more of the response's.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        failure: Callable[[APIError], bytes] = openai_failure,
        done: bytes = DONE,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self._events = events
        self._failure = failure
        self._done = done
        self._headers = [*_HEADERS, *headers]
        self._blocked_since: float | None = None

    def blocked_for(self) -> float:
        """Seconds for which the client has not taken what was sent."""
        return 0.0 if self._blocked_since is None else time.monotonic() - self._blocked_since

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        last = self._done
        try:
            async with aclosing(self._events) as events:
                async for data in events:
                    if not started:
                        started = True
                        await self._begin(send)
                    self._blocked_since = time.monotonic()
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                    self._blocked_since = None
        except Exception as error:
            if not started:
                raise
            failure = as_api_error(error)
            if failure.code == "internal_error" and failure is not error:
                logger.error("a stream failed", exc_info=error)
            scope["octavo.record"].fail(failure)
            last = self._failure(failure) + self._done
        if not started:
            await self._begin(send)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _begin(self, send: Send) -> None:
        headers = list(self._headers)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
