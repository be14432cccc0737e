"""Streams that outlive their connection (`resumable: true`), and the routes to them.

What generates such a stream is a task of its own, which writes into an event log; every connection,
the first one too, only reads. Nobody knows a stream's id before its first event: until then the
stream ends with its connection, as any other.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import msgspec

from octavo.entrypoints.openai.answers import ChatChunk, Completion
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.errors import (
    APIError,
    aborted,
    as_api_error,
    bad_request,
    json_response,
)
from octavo.entrypoints.openai.event_log import EventLog
from octavo.entrypoints.openai.ledger import Ledger
from octavo.entrypoints.openai.request_log import end_in_background
from octavo.entrypoints.openai.shares import StreamPlaces
from octavo.entrypoints.openai.sse import EventStream, split_events
from octavo.errors import shown
from octavo.log import get_logger

if TYPE_CHECKING:
    from starlette.responses import Response

    from octavo.entrypoints.openai.admission import Ticket
    from octavo.entrypoints.openai.endpoint import Call

logger = get_logger(__name__)

PATH = "/v1/streams"
MAX_STREAMS = 1024
"""That run or are read, in all front ends; and that one front end keeps."""
MAX_BYTES = 128 * 2**20
"""Of the events of all streams together; each front end has its part."""
MAX_LOG_BYTES = 8 * 2**20
"""Of the events of one."""

_NUMBER = re.compile(r"[0-9]{1,18}")


class Answer(Protocol):
    """The answer to a request."""

    def events(self) -> AsyncGenerator[bytes, None]:
        """It as a stream: whole events, one or more at a time."""


Begin = Callable[["Call"], Awaitable[Answer]]
"""Checks a request, and begins its answer."""


class ResumeQuery(msgspec.Struct, kw_only=True):
    """Attributes:
    starting_after: number of the last event that is known; -1: none. The header Last-Event-ID goes
        before it.
    """

    starting_after: int = -1


class DeletedStream(msgspec.Struct, kw_only=True):
    """Answer to DELETE /v1/streams/{stream_id}."""

    id: str
    object: str = "stream"
    deleted: bool = True


class ResumableStream:
    """One stream.

    Attributes:
        id: names the front end that has it, and cannot be guessed.
        key: name of the API key that it was made with; None where the server has no keys.
        log: its events.
        num_readers: connections that read it.
        task: what generates it; None when that has ended.
    """

    def __init__(self, stream_id: str, key: str | None, streams: StreamStore) -> None:
        self.id = stream_id
        self.key = key
        self.log = EventLog(MAX_LOG_BYTES)
        self.num_readers = 0
        self.task: asyncio.Task[None] | None = None
        self._streams = streams
        self._error: APIError | None = None
        self._is_known = False
        self._has_place = False
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, call: Call, begin: Begin) -> AsyncGenerator[bytes, None]:
        """Start to generate it, when the first event is asked for, and read it.

        Raises:
            APIError: 503, there are too many; or as `read`.
        """
        self._streams.keep(self)
        self._has_place = True
        self.task = asyncio.ensure_future(self._make(call, call.ticket.hand_over(), begin))
        async with aclosing(self.read(0)) as events:
            async for data in events:
                yield data

    async def _make(self, call: Call, ticket: Ticket, begin: Begin) -> None:
        record = call.record
        key = record.key
        call.server.in_flight += 1
        try:
            with ticket, nullcontext() if key is None else key.account.in_background():
                answer = await begin(replace(call, ticket=ticket))
                record.in_background = True
                async with aclosing(answer.events()) as events:
                    async for data in events:
                        self._append(data)
        except asyncio.CancelledError:
            self._error = aborted()
        except Exception as error:
            self._error = as_api_error(error)
            if self._error.code == "internal_error":
                logger.error("a stream failed", exc_info=error)
            if record.in_background:
                record.fail(self._error)
        finally:
            if record.in_background:
                end_in_background(call.server, record)
            self.task = None
            self._settle()
            self.log.close()
            call.server.in_flight -= 1

    async def read(self, start: int) -> AsyncGenerator[bytes, None]:
        """The events from number `start` on, as they come. As long as somebody reads, it goes on.

        Raises:
            APIError: 410, some of them are forgotten; or what the generation ended with.
        """
        self._set_timer(None)
        self.num_readers += 1
        self._settle()
        try:
            async with aclosing(self.log.read(start)) as events:
                async for data in events:
                    self._is_known = True
                    yield data
            if self._error is not None:
                raise self._error
        finally:
            self.num_readers -= 1
            self._settle()
            if not self._is_known:
                self._streams.drop(self)
            elif not self.num_readers:
                self._set_timer(self._streams.seconds)

    def end(self) -> None:
        """End it, if it has not ended."""
        self._set_timer(None)
        if self.task is not None:
            self.task.cancel()

    @property
    def is_active(self) -> bool:
        """Does it run, or does somebody read it?"""
        return self.task is not None or self.num_readers > 0

    def _settle(self) -> None:
        """Have a place as long as it is active."""
        if self.is_active != self._has_place:
            self._has_place = self.is_active
            places = self._streams.places
            (places.take_again if self._has_place else places.give_back)(self.key)

    def _append(self, data: bytes) -> None:
        before = self.log.num_bytes
        for event in split_events(data):
            self.log.append(b"id: %b:%d\n%b" % (self.id.encode(), self.log.num_events, event))
        self._streams.count(self.log.num_bytes - before)

    def _set_timer(self, seconds: float | None) -> None:
        """Forget the stream after so many seconds."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None and self in self._streams:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._streams.drop, self)


class StreamStore:
    """The resumable streams of a front end: a bounded number, of bounded bytes.

    Args:
        seconds: for which a stream goes on, and is kept, without a reader.
        ledger: its front end is a part of the streams' ids.

    Attributes:
        places: how many may run or be read.
    """

    def __init__(
        self,
        seconds: float,
        ledger: Ledger | None = None,
        *,
        max_streams: int = MAX_STREAMS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        ledger = ledger or Ledger()
        self.seconds = seconds
        self.places = StreamPlaces(max_streams, ledger)
        self._front_end = ledger.front_end
        self._max_streams = max_streams
        self._max_bytes = max_bytes // ledger.num_front_ends
        self._num_bytes = 0
        self._streams: dict[str, ResumableStream] = {}  # in the order in which they began

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, stream: object) -> bool:
        return isinstance(stream, ResumableStream) and stream.id in self._streams

    def new_stream(self, key: str | None) -> ResumableStream:
        """One that has not begun, and is not kept yet."""
        return ResumableStream(f"stream_{self._front_end}_{uuid4().hex}", key, self)

    def keep(self, stream: ResumableStream) -> None:
        """A stream begins, and has a place. Where too many are kept, the oldest one gives way that
        is not active, of the key that has the most of these. Raises APIError 503: no place."""
        self.places.take(stream.key)
        if len(self._streams) >= self._max_streams:  # of which not all are active: it had a place
            num_of = Counter(s.key for s in self._streams.values() if not s.is_active)
            ((key, _),) = num_of.most_common(1)
            self._drop_ended(key)
        self._streams[stream.id] = stream

    def get(self, stream_id: str, key: str | None) -> ResumableStream:
        """The stream, if it was made with this key. Raises APIError 404."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.key != key:
            raise APIError(
                404,
                f"there is no stream {shown(stream_id)}; one that nobody reads is kept for "
                f"{self.seconds:g} s",
                code="stream_not_found",
            )
        return stream

    def drop(self, stream: ResumableStream) -> None:
        """End a stream, and forget it. Those who read it get its end."""
        if self._streams.pop(stream.id, None) is not None:
            self._num_bytes -= stream.log.num_bytes
        stream.end()

    def count(self, num_bytes: int) -> None:
        """A log has grown by so much. If all are too large together, those of the key that has the
        most bytes give way: streams that have ended are forgotten, and then the older half of the
        largest log."""
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            bytes_of: Counter[str | None] = Counter()
            for stream in self._streams.values():
                bytes_of[stream.key] += stream.log.num_bytes
            ((key, _),) = bytes_of.most_common(1)
            if self._drop_ended(key):
                continue
            logs = [stream.log for stream in self._streams.values() if stream.key == key]
            largest = max(logs, key=lambda log: log.num_bytes)
            before = largest.num_bytes
            largest.shrink(before // 2)
            self._num_bytes -= before - largest.num_bytes

    def _drop_ended(self, key: str | None) -> bool:
        """Forget the oldest stream of a key that is not active, if there is one."""
        for stream in self._streams.values():
            if stream.key == key and not stream.is_active:
                self.drop(stream)
                return True
        return False


def resumable(call: Call, begin: Begin) -> EventStream:
    """Answer with a stream that goes on when its client has gone."""
    streams = call.server.streams
    if not streams.seconds:
        raise bad_request(
            "resumable streams are turned off by --resume-timeout 0; leave resumable out",
            "resumable",
        )
    stream = streams.new_stream(call.scope["octavo.key"])
    return _response(stream, stream.start(call, begin))


def _response(stream: ResumableStream, events: AsyncGenerator[bytes, None]) -> EventStream:
    return EventStream(events, headers=((b"x-stream-id", stream.id.encode()),))


def _stream(call: Call) -> ResumableStream:
    return call.server.streams.get(call.path_params["stream_id"], call.scope["octavo.key"])


async def resume_stream(call: Call) -> EventStream:
    """The events after one that is known, or all."""
    stream = _stream(call)
    query = call.query(ResumeQuery)
    last_id = call.header("last-event-id")
    known, param = query.starting_after, "starting_after"
    if last_id:
        prefix, _, number = last_id.rpartition(":")
        if prefix != stream.id or not _NUMBER.fullmatch(number):
            raise bad_request(
                f"Last-Event-ID: {shown(last_id)} is no event of this stream; theirs are "
                f"{stream.id}: and a number",
                "Last-Event-ID",
            )
        known, param = int(number), "Last-Event-ID"
    if not -1 <= known < stream.log.num_events:
        raise bad_request(
            f"there is no event {known} yet; this stream has had {stream.log.num_events}", param
        )
    return _response(stream, stream.read(known + 1))


async def delete_stream(call: Call) -> Response:
    """End a stream, and forget it."""
    stream = _stream(call)
    call.server.streams.drop(stream)
    return json_response(DeletedStream(id=stream.id))


ROUTES = (
    APIRoute(
        method="GET",
        path=f"{PATH}/{{stream_id}}",
        summary="The events of a resumable stream, from the beginning or after a known one",
        handler=resume_stream,
        query=ResumeQuery,
        request_headers=("Last-Event-ID",),
        response=str,
        event=(ChatChunk, Completion),
        media_type="text/event-stream",
        errors=(404, 410),
    ),
    APIRoute(
        method="DELETE",
        path=f"{PATH}/{{stream_id}}",
        summary="End a resumable stream, and forget it",
        handler=delete_stream,
        response=DeletedStream,
        errors=(404,),
    ),
)
