from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest

from octavo.entrypoints.openai import http_server
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import (
    Running,
    close,
    eventually,
    read_reply,
    request_bytes,
    serving,
)

STREAM = {"stream": True, "max_tokens": 200, "ignore_eos": True}


async def test_what_is_no_http() -> None:
    requests = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
        b"HELLO\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: abc\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\na: b\x00c\r\n\r\n",
    ]
    async with serving() as s:
        for data in requests:
            reply = await s.raw(data)
            assert reply.status == 400, data
            assert reply.error["type"] == "invalid_request_error"
        assert (await s.get("/health")).status == 200


async def test_large_heads() -> None:
    async with serving() as s:
        for head in (b"GET /" + b"x" * 70_000, b"GET / HTTP/1.1\r\nhost: x\r\na: " + b"x" * 70_000):
            assert (await s.raw(head)).status == 400
        many = b"".join(b"h%d: x\r\n" % i for i in range(10_000))
        assert (await s.raw(b"GET / HTTP/1.1\r\nhost: x\r\n" + many)).status == 400
        fits = b"GET /health HTTP/1.1\r\nhost: x\r\na: " + b"x" * 60_000 + b"\r\n\r\n"
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
        await eventually(lambda: s.engine.stats().num_running == 4)
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


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/files"])
async def test_a_body_that_still_comes_at_the_end(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is answered, and what has come of it is not kept."""
    monkeypatch.setattr(http_server, "FLUSH_SECONDS", 0.5)
    headers = {"content-length": "1000"}
    if path == "/v1/files":
        headers["content-type"] = "multipart/form-data; boundary=x"
    async with serving(batch_dir=str(tmp_path), drain_seconds=0.1) as s:
        reader, writer = await s.connect()
        writer.write(request_bytes("POST", path, b"--x\r\n", headers))
        await eventually(lambda: s.server.in_flight == 1)
        s.stop.request()
        reply = await read_reply(reader)
        assert (reply.status, reply.error["code"]) == (503, "draining")
        assert await s.task == 0
        await close(writer)
    assert not caplog.records or all(r.exc_info is None for r in caplog.records)
    assert list(tmp_path.glob("contents/*")) == []


async def test_the_engines_death() -> None:
    """Clients have an error, health says so, the exit status is not zero."""
    engine = FakeEngine(step_seconds=0.01)
    async with serving(engine) as s:
        tasks = await _streaming(s, 3)
        whole = asyncio.ensure_future(s.chat("count", max_tokens=3000))
        engine.gate.clear()
        await eventually(lambda: engine.num_unfinished == 4)
        queued = asyncio.ensure_future(s.chat("count", stream=True))
        await eventually(lambda: engine.num_unfinished == 5)
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
        await eventually(lambda: engine.stats().num_running == 2)
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


async def test_http_1_0_gets_no_chunks() -> None:
    """What nginx speaks to the servers behind it, if not told otherwise."""
    async with serving() as s:
        for stream in (False, True):
            fields = {"prompt": "count", "max_tokens": 20, "stream": stream}
            data = request_bytes("POST", "/v1/completions", fields, {})
            old = await s.raw(data.replace(b"HTTP/1.1", b"HTTP/1.0"))
            new = await s.completion("count", max_tokens=20, stream=stream)
            assert old.status == 200
            assert "transfer-encoding" not in old.headers
            assert old.headers["connection"] == "close"
            assert (new.headers.get("transfer-encoding") == "chunked") is stream
            if stream:
                assert "content-length" not in old.headers
                assert [e["choices"] for e in old.events] == [e["choices"] for e in new.events]
                assert old.body.endswith(b"data: [DONE]\n\n")
            else:
                assert int(old.headers["content-length"]) == len(old.body)
        for method in ("GET", "HEAD"):
            reader, writer = await s.connect()
            writer.write(method.encode() + b" /version HTTP/1.0\r\n\r\n")
            assert (await read_reply(reader, method)).status == 200
            assert await reader.read() == b""
            await close(writer)


POST = b"POST /tokenize HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n"
TOKENIZE = b'{"prompt":"hi"}'


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"TLS/1.3, h2c"])
async def test_a_wish_to_upgrade_is_ignored(protocol: bytes) -> None:
    """curl --http2 and Java's client have it in every first request, before its body."""
    wish = b"connection: keep-alive, Upgrade\r\nupgrade: " + protocol + b"\r\n"
    plain = b"content-length: %d\r\n\r\n" % len(TOKENIZE)
    bodies = [
        plain + TOKENIZE,
        b"transfer-encoding: chunked\r\n\r\nf\r\n" + TOKENIZE + b"\r\n0\r\n\r\n",
    ]
    async with serving() as s:
        for body in bodies:
            reader, writer = await s.connect()
            for _ in range(2):  # the connection goes on
                for part in (POST + wish[:20], wish[20:] + body[:-9], body[-9:]):
                    writer.write(part)
                    await asyncio.sleep(0.01)
                assert (await read_reply(reader)).json["count"] == 2
            await close(writer)
        assert (await s.raw(b"GET /health HTTP/1.1\r\nhost: x\r\n" + wish + b"\r\n")).status == 200
        assert (await s.raw(b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n" + wish + b"\r\n")).status == 400


async def test_trailers_are_dropped() -> None:
    """They are not headers: what a proxy in front checked must not come in by the back door."""
    trailer = (
        b"0\r\nauthorization: Bearer k\r\ncontent-type: text/xml\r\nx-request-id: evil\r\n\r\n"
    )
    data = CHUNKED + b"authorization: Bearer k\r\n\r\nf\r\n" + TOKENIZE + b"\r\n" + trailer
    async with serving(api_key=["k"]) as s:
        reply = await s.raw(data)
        assert reply.json["count"] == 2
        assert reply.headers["x-request-id"] != "evil"
        assert (await s.raw(data.replace(b"Bearer k", b"Bearer -", 1))).status == 401


@pytest.mark.parametrize("authorized", [False, True])
@pytest.mark.parametrize(
    ("start", "unit"),
    [
        (b"0\r\n", b"a: b\r\n"),
        (b"0\r\n", b"a" * 100),
        (b"0\r\na: ", b"b" * 100),
        (b"1", b";a=b"),
        (b"", b"0" * 100),
    ],
    ids=["trailers", "trailer name", "trailer value", "chunk extension", "chunk size"],
)
async def test_framing_without_end(authorized: bool, start: bytes, unit: bytes) -> None:
    """What is neither head nor body is bounded as well, whoever sends it."""
    key = b"authorization: Bearer k\r\n" if authorized else b""
    async with serving(api_key=["k"]) as s:
        reader, writer = await s.connect()
        writer.write(CHUNKED + key + b"\r\n" + start)
        sent, block = 0, unit * (8192 // len(unit))
        with suppress(ConnectionError):
            while sent < 2**22 and not reader.at_eof():
                writer.write(block)
                await writer.drain()
                await asyncio.sleep(0)
                sent += len(block)
        await close(writer)
        assert sent < 2**22


async def test_a_body_that_nobody_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the answer the rest of a body has a moment to come; then the connection closes."""
    monkeypatch.setattr(http_server, "LINGER_SECONDS", 0.3)
    head = b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
    async with serving() as s:
        reader, writer = await s.connect()
        writer.write(head)
        assert (await read_reply(reader)).status == 404
        writer.write(
            b"x" * 1000 + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
        )  # it comes: all goes on
        assert (await read_reply(reader)).status == 200
        writer.write(head)
        assert (await read_reply(reader)).status == 404

        async def drip() -> None:
            with suppress(ConnectionError):
                while True:
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.02)

        dripping = asyncio.ensure_future(drip())
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        dripping.cancel()
        await close(writer)


async def test_an_answer_before_the_body_arrives_whole() -> None:
    """The answer closes the connection; it must not be lost to the reset of unread data."""
    size = 2**23
    head = POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % size
    async with serving(max_request_bytes=2**20) as s:
        for _ in range(5):
            reader, writer = await s.connect()
            writer.write(head)
            for _ in range(size // 2**16):
                writer.write(b"x" * 2**16)
                await writer.drain()
            assert (await read_reply(reader)).status == 413
            await close(writer)


async def test_too_many_pipelined_requests() -> None:
    async with serving() as s:
        reader, writer = await s.connect()
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 5000)
        answers = b""
        with suppress(ConnectionError):
            answers = await asyncio.wait_for(reader.read(), 5)
        assert answers.count(b"200 OK") < 5000
        await close(writer)
        assert (await s.get("/health")).status == 200


async def test_garbage_behind_a_stream_does_not_get_into_it() -> None:
    body = b'{"prompt":"count","stream":true,"max_tokens":50}'
    post = POST.replace(b"tokenize", b"v1/completions")
    async with serving() as s:
        reader, writer = await s.connect()
        writer.write(post + b"content-length: %d\r\n\r\n" % len(body) + body)
        answer = await reader.readuntil(b"data: ")
        writer.write(b"\x00garbage\r\n\r\n")
        with suppress(ConnectionError):
            answer += await asyncio.wait_for(reader.read(), 5)
        assert answer.count(b"HTTP/1.1") == 1
        await close(writer)
