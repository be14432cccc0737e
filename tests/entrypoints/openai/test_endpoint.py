"""Bodies, and clients that go away."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import (
    MODEL,
    Running,
    close,
    eventually,
    request_bytes,
    serving,
)

NESTED = b'{"model": ' + b"[" * 200_000


async def test_bodies_that_are_not_json() -> None:
    bodies = [
        *(b"", b"{", b"[]", b"null", b"1", b'"x"', b"{}x", b"\xff\xfe", b'{"model": "\xff"}'),
        *(b'{"prompt": NaN}', b'{"prompt": Infinity}', b'{"temperature": 1e999}', NESTED),
        *(b'{"prompt": "\\ud800"}', b'{"model": "\xed\xa0\x80"}', b"\xef\xbb\xbf{}", b"{'a': 1}"),
        b'{"model": "fake", "prompt": "x", "chat": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
    ]
    async with serving() as s:
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
            for body in bodies:
                reply = await s.post(path, body)
                assert reply.status == 400, body[:40]
                assert reply.error["type"] == "invalid_request_error"
        assert (await s.completion()).status == 200


async def test_large_bodies() -> None:
    async with serving(max_request_bytes=1000) as s:
        fits = b'{"model":"fake","prompt":"' + b"x" * 970 + b'"}'
        assert len(fits) < 1000
        assert (await s.post("/v1/completions", fits)).status == 200
        reply = await s.post("/v1/completions", fits.ljust(1001))
        assert reply.status == 413
        assert reply.error["code"] == "request_too_large"
        chunked = b"".join(b"64\r\n" + b" " * 100 + b"\r\n" for _ in range(11)) + b"0\r\n\r\n"
        head = request_bytes("POST", "/v1/completions", None, {"transfer-encoding": "chunked"})
        head = head.replace(b"content-length: 0\r\n", b"")
        assert (await s.raw(head + chunked)).status == 413


async def test_a_chunked_body() -> None:
    async with serving() as s:
        body = b'{"model":"fake","prompt":"SAY:hi"}'
        head = request_bytes("POST", "/v1/completions", None, {"transfer-encoding": "chunked"})
        head = head.replace(b"content-length: 0\r\n", b"")
        chunks = b"".join(b"1\r\n" + body[i : i + 1] + b"\r\n" for i in range(len(body)))
        assert (await s.raw(head + chunks + b"0\r\n\r\n")).json["choices"][0]["text"] == "hi"


async def test_a_slow_body() -> None:
    async with serving(body_timeout=0.05) as s:
        reply = await s.raw(request_bytes("POST", "/tokenize", None, {"content-length": "5"}))
        assert reply.status == 408


async def test_media_types() -> None:
    good = [None, "application/json", "Application/JSON; charset=utf-8", "application/x+json"]
    bad = ["text/plain", "application/x-www-form-urlencoded", "application/octet-stream", ""]
    async with serving() as s:
        body = {"model": MODEL, "prompt": "SAY:x"}
        for kind in (*good, *bad):
            reply = await s.post("/v1/completions", body, content_type=kind)
            assert reply.status == (200 if kind in good else 415), kind
        assert (await s.post("/tokenize", body, content_encoding="gzip")).status == 415
        assert (await s.post("/tokenize", body, content_encoding="Identity")).status == 200
        twice = b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-encoding: gzip\r\n"
        twice += b"content-encoding: identity\r\ncontent-length: 15\r\n\r\n" + b'{"prompt": "a"}'
        assert (await s.raw(twice)).status == 415
        form = {"content_type": "multipart/form-data; boundary=b", "content_encoding": "gzip"}
        assert (await s.post("/v1/files", b"--b--", **form)).status == 415


async def _start(s: Running, path: str, body: dict[str, Any]) -> asyncio.StreamWriter:
    _, writer = await s.connect()
    writer.write(request_bytes("POST", path, {"model": MODEL, **body}, {}))
    return writer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["count", ["count", "count too", "and I"]])
async def test_a_client_that_leaves(stream: bool, prompt: Any) -> None:
    """vllm#51629, #14512: everything of an abandoned request goes, streamed or not, n > 1 too."""
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine) as s:
        body = {"prompt": prompt, "n": 4, "max_tokens": 2000, "ignore_eos": True, "stream": stream}
        for _ in range(5):
            writer = await _start(s, "/v1/completions", body)
            num = 4 * (len(prompt) if isinstance(prompt, list) else 1)
            await eventually(lambda: engine.stats().num_running == num)  # noqa: B023
            await close(writer)
            await eventually(lambda: engine.is_idle and s.server.in_flight == 0)
        stats = engine.stats()
        assert stats.num_running == stats.num_waiting == stats.num_used_blocks == 0
        metrics = await s.metrics()
        assert metrics['request_aborts_total{reason="disconnect"}'] == 5 * num
        assert metrics['request_success_total{finished_reason="abort"}'] == 5 * num
        assert metrics["num_requests_running"] == 0


async def test_a_client_that_leaves_the_queue() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    async with serving(engine) as s:
        for stream in (False, True):
            writer = await _start(s, "/v1/completions", {"prompt": "count", "stream": stream})
            await eventually(lambda: s.server.admission.num_reqs == 1 and not engine.is_idle)
            await close(writer)
            await eventually(lambda: engine.is_idle)
            assert s.server.admission.num_reqs == s.server.admission.num_tokens == 0
        engine.gate.set()


async def test_a_client_that_leaves_within_its_body() -> None:
    async with serving() as s:
        _, writer = await s.connect()
        writer.write(request_bytes("POST", "/v1/completions", None, {"content-length": "100"}))
        await eventually(lambda: s.server.in_flight == 1)
        await close(writer)
        await eventually(lambda: s.server.in_flight == 0)
        metrics = await s.metrics()
        labels = 'method="POST",route="/v1/completions",status="499"'
        assert metrics[f"http_requests_total{{{labels}}}"] == 1


async def test_streams_dropped_at_random() -> None:
    """64 streams, a third dropped in mid-stream; rounds leave nothing behind."""
    engine = FakeEngine(step_seconds=0.001)
    rng = random.Random(0)

    async def client(s: Running, drop: bool, skip: int) -> bytes:
        reader, writer = await s.connect()
        body = {"prompt": "SAY:" + "abc" * 30, "stream": True, "max_tokens": 200}
        data = request_bytes("POST", "/v1/completions", {"model": MODEL, **body}, {})
        writer.write(data.replace(b"host:", b"connection: close\r\nhost:"))
        data = await (reader.read(skip) if drop else reader.read(-1))
        await close(writer)
        return data

    async with serving(engine) as s:
        for _ in range(3):
            drops = [i % 3 == 0 for i in range(64)]
            tasks = [client(s, drop, rng.randrange(1, 5000)) for drop in drops]
            answers = await asyncio.gather(*tasks)
            kept = [a for a, drop in zip(answers, drops) if not drop]
            assert all(a.count(b'"text"') == 91 and b"data: [DONE]" in a for a in kept)
            await eventually(lambda: engine.is_idle and s.server.in_flight == 0)
            assert engine.stats().num_used_blocks == 0


async def test_same_request_ids() -> None:
    """vllm#10583: two requests of one id both get their own answer."""
    async with serving(FakeEngine(step_seconds=0.002)) as s:
        bodies = [{"model": MODEL, "prompt": f"SAY:{c * 30}", "max_tokens": 99} for c in "abc"]
        send = [s.post("/v1/completions", b, x_request_id="same") for b in bodies]
        gone = await _start(s, "/v1/completions", {"prompt": "count", "request_id": "same"})
        replies = await asyncio.gather(*send)
        await close(gone)
        assert [r.json["choices"][0]["text"] for r in replies] == ["a" * 30, "b" * 30, "c" * 30]
        assert {r.json["id"] for r in replies} == {"cmpl-same"}
        assert {r.headers["x-request-id"] for r in replies} == {"same"}


async def test_a_client_that_takes_nothing() -> None:
    engine = FakeEngine()
    async with serving(engine, stall_timeout=0.1) as s:
        reader, writer = await s.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        body = {"prompt": "count", "n": 128, "max_tokens": 3000, "stream": True, "logprobs": 20}
        writer.write(request_bytes("POST", "/v1/completions", {"model": MODEL, **body}, {}))
        await eventually(lambda: not engine.is_idle)
        await eventually(lambda: engine.is_idle, 60)
        await close(writer)
        del reader


async def test_many_bodies_at_once() -> None:
    """Bodies that do not end are bounded together, and let go with their connections."""
    head = b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
    async with serving(max_request_bytes=1000) as s:
        writers = []
        for _ in range(32):
            _, writer = await s.connect()
            writer.write(head + b"x" * 999)
            writers.append(writer)
        admission = s.server.admission
        await eventually(lambda: admission.num_body_bytes == 32 * 999)
        reply = await s.post("/tokenize", {"prompt": "a" * 100})
        assert (reply.status, reply.error["code"]) == (503, "queue_full")
        for writer in writers:
            await close(writer)
        await eventually(lambda: admission.num_body_bytes == 0)
        assert (await s.post("/tokenize", {"prompt": "a" * 100})).status == 200


async def test_a_body_is_not_kept_while_the_answer_is_made() -> None:
    async with serving(FakeEngine(step_seconds=0.001)) as s:
        task = asyncio.ensure_future(s.completion("count", max_tokens=500, user="x" * 10_000))
        await eventually(lambda: not s.engine.is_idle)
        assert s.server.admission.num_body_bytes == 0
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
