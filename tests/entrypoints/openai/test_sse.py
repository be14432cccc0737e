from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from octavo.entrypoints.openai.errors import bad_request
from octavo.entrypoints.openai.record import RequestRecord
from octavo.entrypoints.openai.sse import EventStream, event, split_events
from tests.entrypoints.openai.harness import eventually


async def _run(events: AsyncGenerator[bytes, None]) -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"octavo.record": RequestRecord(request_id="r")}
    await EventStream(events)(scope, None, send)  # type: ignore[arg-type]
    return sent


async def test_events_then_done() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield event({"a": "é"})
        yield event(1) + event(2)

    start, *bodies = await _run(events())
    assert start["status"] == 200
    assert [b["body"] for b in bodies] == [
        'data: {"a":"é"}\n\n'.encode(),
        b"data: 1\n\ndata: 2\n\n",
        b"data: [DONE]\n\n",
    ]
    assert [b["more_body"] for b in bodies] == [True, True, False]


async def test_no_events() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        return
        yield b""

    start, body = await _run(events())
    assert start["status"] == 200
    assert body["body"] == b"data: [DONE]\n\n"


def test_events_that_were_sent_together() -> None:
    texts = ["", "a\n\nb", "\r\n\r\n", "\u2028\u0085", "data: x\n\n"]
    events = [event({"text": text}) for text in texts]
    assert split_events(b"".join(events)) == events
    assert split_events(b"") == []


async def test_an_early_error_is_not_a_stream() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        raise bad_request("no")
        yield b""

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(Exception, match="no"):
        await EventStream(events())({}, None, send)  # type: ignore[arg-type]
    assert sent == []


async def test_a_late_error_is_an_event() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield event(1)
        raise bad_request("no")

    *_, last = await _run(events())
    assert last["body"].startswith(b'data: {"error":{"message":"no"')
    assert last["body"].endswith(b"\n\ndata: [DONE]\n\n")


async def test_the_source_is_closed_when_the_reader_leaves() -> None:
    closed = False

    async def events() -> AsyncGenerator[bytes, None]:
        nonlocal closed
        try:
            while True:
                yield b"x"
        finally:
            await asyncio.sleep(0)
            closed = True

    stream = EventStream(events())

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(60)

    task = asyncio.ensure_future(stream({}, None, send))  # type: ignore[arg-type]
    await eventually(lambda: stream.blocked_for() > 0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert closed
