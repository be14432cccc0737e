"""Where a request ends is never in doubt, so that a proxy in front and this server read the same
ones; and nothing that a proxy may add makes a request another one's (CVE-2026-48746's kind)."""

from __future__ import annotations

import asyncio

import pytest

from tests.entrypoints.openai.harness import close, serving

BODY = b'{"prompt": "SAY:a"}'
SIZE = b"%d" % len(BODY)
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
SECOND = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked"


def head(*lines: bytes, version: bytes = b"1.1") -> bytes:
    return b"\r\n".join(
        [
            b"POST /v1/completions HTTP/" + version,
            b"host: x",
            b"authorization: Bearer k",
            *lines,
            b"",
            b"",
        ]
    )


AMBIGUOUS = {
    "both lengths": head(b"content-length: " + SIZE, CHUNKED) + CHUNKS,
    "both lengths, the other way": head(CHUNKED, b"content-length: 4") + CHUNKS,
    "one length twice": head(b"content-length: " + SIZE, b"content-length: " + SIZE) + BODY,
    "two lengths": head(b"content-length: " + SIZE, b"content-length: 3") + BODY,
    "a list of lengths": head(b"content-length: " + SIZE + b", " + SIZE) + BODY,
    "a length with a sign": head(b"content-length: +" + SIZE) + BODY,
    "a hexadecimal length": head(b"content-length: 0x13") + BODY,
    "a length with a space": head(b"content-length : " + SIZE) + BODY,
    "a length without end": head(b"content-length: " + b"9" * 40) + BODY,
    "another coding": head(b"transfer-encoding: xchunked") + CHUNKS,
    "a coding behind chunks": head(b"transfer-encoding: chunked, identity") + CHUNKS,
    "a coding before chunks": head(b"transfer-encoding: gzip, chunked") + CHUNKS,
    "chunks twice": head(CHUNKED, CHUNKED) + CHUNKS,
    "two codings": head(CHUNKED, b"transfer-encoding: identity") + CHUNKS,
    "a coding behind a tab": head(b"transfer-encoding:\x0bchunked") + CHUNKS,
    "chunks in HTTP/1.0": head(CHUNKED, version=b"1.0") + CHUNKS,
    "chunks in HTTP/1.0 that stays": head(CHUNKED, b"connection: keep-alive", version=b"1.0")
    + CHUNKS,
    "a chunk of no size": head(CHUNKED) + b"zz\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a chunk of 2^68 bytes": head(CHUNKED) + b"f" * 17 + b"\r\n" + BODY,
    "a negative chunk": head(CHUNKED) + b"-5\r\n" + BODY,
    "a chunk with 0x": head(CHUNKED) + b"0x13\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunks with bare line feeds": head(CHUNKED) + b"13\n" + BODY + b"\n0\n\n",
    "a chunk that is longer": head(CHUNKED) + b"5\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a folded header": head(b"x-a: b", b" content-length: 5") + BODY,
    "a name with a space": head(b"content length: 5") + BODY,
    "a zero byte": head(b"x-a: b\x00") + BODY,
}


@pytest.mark.parametrize("case", AMBIGUOUS)
async def test_where_a_request_ends_is_never_in_doubt(case: str) -> None:
    """Refused, and what follows is not read as a request."""
    async with serving(api_key=["k"]) as s:
        reader, writer = await s.connect()
        writer.write(AMBIGUOUS[case] + SECOND)
        answers = await asyncio.wait_for(reader.read(), 15)
        await close(writer)
        assert answers.startswith(b"HTTP/1.1 400 ")
        assert answers.count(b"HTTP/1.1 ") == 1
        assert b'"object":"list"' not in answers


async def test_chunks_are_read() -> None:
    async with serving(api_key=["k"]) as s:
        for coding in (CHUNKED, b"Transfer-Encoding:  Chunked "):
            reader, writer = await s.connect()
            writer.write(
                head(coding) + CHUNKS + SECOND.replace(b"host", b"connection: close\r\nhost")
            )
            answers = await asyncio.wait_for(reader.read(), 15)
            await close(writer)
            assert answers.count(b"HTTP/1.1 200 ") == 2


async def test_each_request_of_a_connection_needs_a_key() -> None:
    without = SECOND.replace(b"authorization: Bearer k\r\n", b"")
    async with serving(api_key=["k"]) as s:
        for order, statuses in (
            ((SECOND, without), [b"200", b"401"]),
            ((without, SECOND), [b"401", b"200"]),
        ):
            reader, writer = await s.connect()
            last = order[1].replace(b"host", b"connection: close\r\nhost")
            writer.write(order[0] + last)
            answers = await asyncio.wait_for(reader.read(), 15)
            await close(writer)
            assert [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]] == statuses


@pytest.mark.parametrize(
    "header",
    [
        *("x-forwarded-for: 127.0.0.1", "x-real-ip: 127.0.0.1", "forwarded: for=127.0.0.1"),
        *("x-original-url: /health", "x-rewrite-url: /health", "x-forwarded-prefix: /health"),
        *("x_api_key: k", "x-api-key : k", "proxy-authorization: Bearer k", "cookie: api_key=k"),
        *("authorization: Basic azpr", "authorization: Bearer", "authorization: k"),
        *(
            "authorization: Bearer K",
            "authorization: Bearer k\u200b",
            "authorization: Bearer \uff4b",
        ),
        *(
            "authorization: Bearer \u212a",
            "authorization: Bearer k,k",
            "x-http-method-override: GET",
        ),
        "x-octavo-key: k",
    ],
)
async def test_headers_of_proxies_open_nothing(header: str) -> None:
    async with serving(api_key=["k"]) as s:
        data = f"GET /v1/models?api_key=k HTTP/1.1\r\nhost: x\r\n{header}\r\n\r\n"
        reply = await s.raw(data.encode())
        assert reply.status in (400, 401)
        assert b"fake" not in reply.body


async def test_who_waits_to_be_asked_for_a_body_needs_a_key_first() -> None:
    """`Expect: 100-continue`: nobody is told to go on whose request is refused."""
    async with serving(api_key=["k"], max_request_bytes=100) as s:
        expecting = head(b"content-length: 99999999", b"expect: 100-continue")
        for data, status in (
            (expecting.replace(b"Bearer k", b"Bearer x"), 401),
            (expecting, 413),
        ):
            assert (await s.raw(data)).status == status
        reader, writer = await s.connect()
        writer.write(head(b"content-length: " + SIZE, b"expect: 100-continue"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
        await close(writer)
