"""What a client sends does not become a header, a line of the log, or part of a page."""

from __future__ import annotations

import io
import logging
import re

import pytest

from octavo.entrypoints.openai.gate import is_request_id
from octavo.log import JsonFormatter, TextFormatter
from tests.entrypoints.openai.harness import close, serving

LINES = ["\r\nx-evil: 1", "\nx-evil: 1", "\r\n\r\n<script>", "\u2028x", "\x00", "\x1b[2J", "é", '"']


@pytest.mark.parametrize("evil", LINES)
def test_request_ids(evil: str) -> None:
    assert not is_request_id("a" + evil)
    assert not is_request_id(evil + "a")


async def test_ids_are_echoed_in_header_and_body_only_where_they_are_safe() -> None:
    async with serving() as s:
        for evil in ("a\tb", "a b", "<script>", "a,b", "../x", "a;b", "${jndi:x}", "%0d%0ax"):
            reply = await s.get("/health", x_request_id=evil)
            assert evil not in reply.headers["x-request-id"]
            reply = await s.completion("SAY:x", request_id=evil)
            assert (reply.status, reply.error["param"]) == (400, "request_id")


async def test_bare_line_ends_make_no_second_header() -> None:
    async with serving(api_key=["k"]) as s:
        for middle in (b"\n", b"\r", b"\r\n ", b"\x0b", b"\x85"):
            data = (
                b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-a: b"
                + middle
                + b"authorization: Bearer k\r\n\r\n"
            )
            if (
                middle != b"\n"
            ):  # which some parsers take for the end of a line: a header it is then
                assert (await s.raw(data)).status in (400, 401), middle
            reader, writer = await s.connect()
            writer.write(
                b"GET /health HTTP/1.1\r\nhost: x\r\nx-request-id: a"
                + middle
                + b"x-evil: 1\r\n\r\n"
            )
            head = await reader.readuntil(b"\r\n\r\n")
            await close(writer)
            assert b"x-evil" not in head


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
async def test_one_line_of_the_log_per_request(formatter: logging.Formatter) -> None:
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(formatter)
    gate = logging.getLogger("octavo.entrypoints.openai.gate")
    gate.addHandler(handler)
    gate.setLevel(logging.INFO)
    try:
        async with serving() as s:
            for path in ("/%0aI%20forged", "/%0d%0aforged", "/%1b[31mforged", "/%E2%80%A8forged"):
                await s.get(path)
    finally:
        gate.removeHandler(handler)
        gate.setLevel(logging.NOTSET)
    assert len(text.getvalue().splitlines()) == 4
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text.getvalue())


async def test_errors_quote_paths_as_json() -> None:
    async with serving() as s:
        reply = await s.get("/%3Cscript%3Ealert(1)%3C/script%3E")
        assert reply.headers["content-type"] == "application/json"
        assert reply.status == 404
