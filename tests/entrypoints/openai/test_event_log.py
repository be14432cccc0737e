"""Events that are read late, again, and while they come."""

from __future__ import annotations

import asyncio

import pytest

from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.event_log import EventLog


async def read(log: EventLog, start: int = 0) -> bytes:
    return b"".join([data async for data in log.read(start)])


async def test_every_reader_gets_every_event_once() -> None:
    log = EventLog(1000)
    early = asyncio.ensure_future(read(log))
    for i in range(200):
        log.append(b"%d," % i)
        if i == 100:
            middle = asyncio.ensure_future(read(log, 50))
        if i % 7 == 0:
            await asyncio.sleep(0)
    log.close()
    whole = b"".join(b"%d," % i for i in range(200))
    assert await early == await read(log) == whole
    assert await middle == await read(log, 50) == whole[whole.index(b"50,") :]
    assert await read(log, 200) == b""


async def test_the_oldest_events_are_forgotten() -> None:
    log = EventLog(10)
    for i in range(8):
        log.append(b"%03d" % i)
    log.close()
    assert log.num_bytes == 9
    assert await read(log, 5) == b"005006007"
    with pytest.raises(APIError, match="the oldest one is 5") as caught:
        await read(log, 4)
    assert caught.value.status == 410


async def test_shrinking() -> None:
    log = EventLog(100)
    for i in range(8):
        log.append(b"%03d" % i)
    log.shrink(12)
    assert (log.num_events, log.num_bytes) == (8, 12)
    log.append(b"008")
    log.close()
    assert await read(log, 4) == b"004005006007008"
    log.shrink(0)
    assert (log.num_events, log.num_bytes) == (9, 0)
    assert await read(log, 9) == b""


async def test_a_reader_that_falls_behind_is_told() -> None:
    log = EventLog(10)
    log.append(b"a")
    reader = log.read(0)
    assert await reader.__anext__() == b"a"
    for _ in range(6):
        log.append(b"long")
    with pytest.raises(APIError):
        await reader.__anext__()
