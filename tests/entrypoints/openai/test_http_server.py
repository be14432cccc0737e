from __future__ import annotations

import asyncio
import time

import pytest

from octavo.entrypoints.openai import http_server
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import Running, close, eventually, serving

STREAM = {"stream": True, "max_tokens": 200, "ignore_eos": True}


async def test_what_is_no_http() -> None:
    requests = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
        b"HELLO\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\ncontent-length: abc\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST /tokenize HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\na: b\x00c\r\n\r\n",
    ]
    async with serving() as s:
        for data in requests:
            reply = await s.raw(data)
            assert reply.status == 400, data
            assert reply.error["type"] == "invalid_request_error"
        assert (await s.get("/health")).status == 200


async def test_large_heads() -> None:
    async with serving() as s:
        for head in (b"GET /" + b"x" * 70_000, b"GET / HTTP/1.1\r\na: " + b"x" * 70_000):
            assert (await s.raw(head)).status == 400
        many = b"".join(b"h%d: x\r\n" % i for i in range(10_000))
        assert (await s.raw(b"GET / HTTP/1.1\r\n" + many)).status == 400
        fits = b"GET /health HTTP/1.1\r\na: " + b"x" * 60_000 + b"\r\n\r\n"
        assert (await s.raw(fits)).status == 200


async def test_a_head_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT", 0.05)
    async with serving() as s:
        for start in (b"", b"GET / HTTP/1.1\r\nhost:"):
            reader, writer = await s.connect()
            writer.write(start)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            await close(writer)
        assert (await s.completion("count", max_tokens=50)).status == 200


async def test_pipelined_requests() -> None:
    async with serving() as s:
        one = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
        reader, writer = await s.connect()
        writer.write(one * 19 + one.replace(b"host", b"connection: close\r\nhost"))
        data = await reader.read()
        await close(writer)
        assert data.count(b"HTTP/1.1 200") == 20


async def _streaming(s: Running, num: int) -> list[asyncio.Task]:  # type: ignore[type-arg]
    tasks = [asyncio.ensure_future(s.completion("count", **STREAM)) for _ in range(num)]
    await eventually(lambda: s.engine.stats().num_running == num)
    return tasks


async def test_stop_lets_streams_end() -> None:
    async with serving(FakeEngine(step_seconds=0.002)) as s:
        tasks = await _streaming(s, 5)
        s.stop.request()
        await eventually(lambda: s.server.admission.draining)
        assert (await s.get("/health")).status == 503
        reply = await s.completion()
        assert reply.status == 503
        assert reply.headers["retry-after"]
        assert reply.error["code"] == "draining"
        for reply in await asyncio.gather(*tasks):
            assert len(reply.events) == 200
            assert reply.events[-1]["choices"][0]["finish_reason"] == "length"
        assert await s.task == 0
        assert s.engine.shutdowns == 1
        with pytest.raises(ConnectionError):
            await s.get("/health")


async def test_stop_ends_what_takes_too_long() -> None:
    async with serving(FakeEngine(step_seconds=0.05), drain_seconds=0.2) as s:
        tasks = await _streaming(s, 3)
        whole = asyncio.ensure_future(s.completion("count", max_tokens=200))
        await asyncio.sleep(0.1)
        s.stop.request()
        for reply in await asyncio.gather(*tasks):
            assert reply.status == 200
            assert reply.events[-1]["error"]["code"] == "engine_dead"
        assert (await whole).status == 503
        assert await s.task == 0


async def test_a_second_signal_hurries() -> None:
    async with serving(FakeEngine(step_seconds=0.05), drain_seconds=60) as s:
        tasks = await _streaming(s, 1)
        started = time.monotonic()
        s.stop.request()
        s.stop.request()
        await asyncio.gather(*tasks)
        assert await s.task == 0
        assert time.monotonic() - started < 30


async def test_the_engines_death() -> None:
    """Issue line 4: clients have an error, health says so, the exit status is not zero."""
    engine = FakeEngine(step_seconds=0.01)
    async with serving(engine) as s:
        tasks = await _streaming(s, 3)
        whole = asyncio.ensure_future(s.chat("count", max_tokens=3000))
        engine.gate.clear()
        await asyncio.sleep(0.05)
        queued = asyncio.ensure_future(s.chat("count", stream=True))
        await asyncio.sleep(0.05)
        engine.die()
        for reply in await asyncio.gather(*tasks):
            assert reply.status == 200
            assert reply.events[-1]["error"]["type"] == "server_error"
        assert (await whole).status == 503
        assert (await queued).status == 503  # before the first token: no stream
        assert (await s.get("/health")).status == 503
        assert await s.task == 1


async def test_an_aborted_request_says_so() -> None:
    engine = FakeEngine(step_seconds=0.01)
    async with serving(engine) as s:
        [task] = await _streaming(s, 1)
        whole = asyncio.ensure_future(s.chat("count", max_tokens=3000))
        await asyncio.sleep(0.05)
        engine.abort_all()
        assert (await task).events[-1]["error"]["code"] == "aborted"
        assert (await whole).status == 503


async def test_keep_alive() -> None:
    async with serving() as s:
        reader, writer = await s.connect()
        for _ in range(3):
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"200 OK" in head
            await reader.readexactly(15)
        await close(writer)
