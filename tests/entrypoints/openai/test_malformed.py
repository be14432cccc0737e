"""Two thousand malformed requests on raw sockets: no crash, no leak, every KV block free."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.entrypoints.openai.harness import close
from tests.entrypoints.openai.live import Live, live
from tests.tiny_model import write_tiny_llama

pytestmark = pytest.mark.slow

NUM_REQUESTS = 2000
NUM_AT_ONCE = 32
GOOD = b'{"prompt": "a", "max_tokens": 4}'
STREAM = b'{"prompt": "a", "max_tokens": 200, "ignore_eos": true, "stream": true}'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Live]:
    (tmp_path / "model").mkdir()
    path = write_tiny_llama(tmp_path / "model")
    options = ("--distributed-executor-backend", "fake", "--fake-step-time", "0.001")
    with live(str(path), *options, "--body-timeout", "2", home=tmp_path) as server:
        yield server


def head(length: int | None, *lines: bytes, path: bytes = b"/v1/completions") -> bytes:
    start = [b"POST " + path + b" HTTP/1.1", b"host: x", b"content-type: application/json"]
    start += [] if length is None else [b"content-length: %d" % length]
    return b"\r\n".join([*start, *lines, b"", b""])


def post(body: bytes, *lines: bytes, path: bytes = b"/v1/completions") -> bytes:
    return head(len(body), *lines, path=path) + body


def deep(draw: random.Random) -> bytes:
    """JSON 10,000 levels deep."""
    opening, closing = draw.choice([(b"[", b"]"), (b'{"a":', b"}")])
    value = opening * 10_000 + b"1" + closing * 10_000
    field = draw.choice([b"prompt", b"logit_bias", b"stop", b"structured_outputs"])
    return post(b'{"prompt": "a", "' + field + b'": ' + value + b"}")


def broken_json(draw: random.Random) -> bytes:
    body = bytearray(GOOD)
    for _ in range(draw.randrange(1, 6)):
        body[draw.randrange(len(body))] = draw.randrange(256)
    return post(bytes(body))


def cut_json(draw: random.Random) -> bytes:
    return post(GOOD[: draw.randrange(len(GOOD))])


def invalid_utf8(draw: random.Random) -> bytes:
    bad = draw.choice([b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"])
    return post(b'{"prompt": "' + bad + b'"}')


def huge_header(draw: random.Random) -> bytes:
    return post(GOOD, b"x-huge: " + b"a" * draw.choice([60_000, 70_000, 1_000_000]))


def many_headers(draw: random.Random) -> bytes:
    return post(GOOD, *(b"x-%d: y" % i for i in range(draw.choice([100, 20_000]))))


def no_http(draw: random.Random) -> bytes:
    return draw.randbytes(draw.randrange(1, 4000))


def bad_length(draw: random.Random) -> bytes:
    length = draw.choice([b"-1", b"x", b"1e3", b"99999999999999999999", b"5, 6", b""])
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: " + length + b"\r\n\r\n{}"


def bad_chunks(draw: random.Random) -> bytes:
    chunk = draw.choice(
        [b"zz\r\n{}\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"2;" + b"e" * 70_000]
    )
    return head(None, b"transfer-encoding: chunked") + chunk


def too_large(draw: random.Random) -> bytes:
    """Says that it has 100 MB."""
    return head(100_000_000) + b"x" * draw.randrange(1000)


def smuggled(draw: random.Random) -> bytes:
    both = head(len(GOOD), b"transfer-encoding: chunked") + b"0\r\n\r\n"
    return both + b"GET /admin HTTP/1.1\r\nhost: x\r\n\r\n"


def wrong_place(draw: random.Random) -> bytes:
    path = draw.choice(
        [b"/..%2f..%2fetc/passwd", b"//v1//completions", b"/%00", b"/" + b"a" * 9000]
    )
    return post(GOOD, path=path)


MAKERS: tuple[Callable[[random.Random], bytes], ...] = (
    *(deep, broken_json, cut_json, invalid_utf8, huge_header, many_headers, no_http),
    *(bad_length, bad_chunks, too_large, smuggled, wrong_place),
)


async def whole(server: Live, data: bytes) -> int:
    """Send everything and read what comes. Returns the status, 0 for none."""
    return await _exchange(server, [data])


async def slowly(server: Live, data: bytes) -> int:
    """A few bytes of the body at a time, and never the last ones."""
    return await _exchange(server, [head(len(GOOD)), GOOD[:5], GOOD[5:9]], gap=0.2)


async def half_closed(server: Live, data: bytes) -> int:
    """The client has said all and closes its side before the answer."""
    return await _exchange(server, [post(random.Random(0).choice([GOOD, STREAM]))], half=True)


async def gone(server: Live, data: bytes) -> int:
    """The client leaves at once."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(post(STREAM))
    await writer.drain()
    writer.transport.abort()
    return 0


async def flood(server: Live, data: bytes) -> int:
    """A hundred megabytes that really come."""
    piece = b"x" * 1_000_000
    return await _exchange(server, [head(100_000_000), *[piece] * 100])


async def _exchange(
    server: Live, pieces: list[bytes], *, gap: float = 0.0, half: bool = False
) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**24)
    reply = asyncio.ensure_future(_status(reader))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            if gap:
                await asyncio.sleep(gap)
        if half:
            writer.write_eof()
        return await asyncio.wait_for(reply, 40)
    except ConnectionError:
        return await asyncio.wait_for(reply, 40)
    finally:
        reply.cancel()
        await close(writer)


async def _status(reader: asyncio.StreamReader) -> int:
    try:
        first = await reader.readline()
        await reader.read(4096)
    except (ConnectionError, ValueError):
        return 0
    found = re.match(rb"HTTP/1\.1 (\d+)", first)
    return int(found[1]) if found else 0


async def attack(server: Live, num: int, seed: int) -> Counter[int]:
    draw = random.Random(seed)
    slots = asyncio.Semaphore(NUM_AT_ONCE)
    ways = [whole] * 40 + [slowly] * 3 + [half_closed] * 3 + [gone] * 3

    async def one(i: int) -> int:
        data = draw.choice(MAKERS)(draw)
        way = flood if i % 400 == 7 else draw.choice(ways)
        async with slots:
            return await way(server, data)

    return Counter(await asyncio.gather(*[one(i) for i in range(num)]))


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]


async def test_nothing_knocks_it_over(server: Live) -> None:
    warm = await attack(server, NUM_REQUESTS // 2, seed=1)  # buffers of the allocator, all code
    await asyncio.to_thread(server.until_idle, 30)
    pids = (server.process.pid, server.core)
    before = [resident(pid) for pid in pids]
    statuses = await attack(server, NUM_REQUESTS, seed=2)
    print(dict(warm), dict(statuses))
    assert not {500, 502, 504} & set(statuses)
    assert {400, 404, 408, 413} <= set(statuses)
    await asyncio.to_thread(server.until_idle, 30)  # every KV block is free
    after = [resident(pid) for pid in pids]
    print([f"{b / 2**20:.1f} → {a / 2**20:.1f} MiB" for b, a in zip(before, after)])
    for was, now in zip(before, after):
        assert now <= was * 1.05
    reply = await server.request("POST", "/v1/completions", json.loads(GOOD), {})
    assert reply.status == 200
