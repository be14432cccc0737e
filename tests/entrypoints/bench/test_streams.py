"""The benchmark's client: what it counts, however the bytes are cut."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.entrypoints.bench.streams import Connections, StreamResult, request_bytes
from octavo.entrypoints.http_client import Endpoint
from tests.entrypoints.web_server import Request, chunk, event_stream, json_answer, web_server

USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
EVENTS = [{"choices": [{"text": t}]} for t in ("a", 'data: {"b"}', "\n\ndata: [DONE]")]


def fetch(url: str, count: int = 1) -> list[StreamResult]:
    """Results of so many requests, one after the other."""

    async def run() -> list[StreamResult]:
        endpoint = Endpoint(url)
        connections = Connections(endpoint)
        body = request_bytes(endpoint, "/v1/completions", {"n": 1})
        results = [await asyncio.wait_for(connections.stream(body), 20) for _ in range(count)]
        connections.close()
        return results

    return asyncio.run(run())


def test_a_stream_and_a_second_on_the_same_connection() -> None:
    ports = set()

    def answer(request: Request) -> list[bytes]:
        ports.add(request.headers["host"])
        return event_stream([*EVENTS, USAGE])

    with web_server(answer) as server:
        for result in fetch(server.url, 2):
            assert result.error is None
            assert (result.prompt_tokens, result.output_tokens) == (7, 3)
            assert result.num_events == 3
            assert result.start <= result.arrivals[0][0] <= result.end
    assert [r.json for r in server.requests] == [{"n": 1}] * 2
    assert [(r.method, r.path) for r in server.requests] == [("POST", "/v1/completions")] * 2


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(0, 600), max_size=6))
def test_cuts_do_not_matter(cuts: list[int]) -> None:
    whole = b"".join(event_stream([*EVENTS, USAGE]))
    marks = sorted({0, len(whole), *(c for c in cuts if c < len(whole))})
    pieces = [whole[a:b] for a, b in itertools.pairwise(marks)]

    def answer(request: Request) -> Any:
        for piece in pieces:
            yield piece
            time.sleep(0.001)

    with web_server(answer) as server:
        (result,) = fetch(server.url)
    assert (result.error, result.num_events, result.output_tokens) == (None, 3, 3)


def test_a_body_without_chunks() -> None:
    data = b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(
        b"data: %s\n\n" % d for d in (b'{"choices":[1]}', b'{"usage":{"prompt_tokens":1,'
        b'"completion_tokens":1}}', b"[DONE]")
    )  # fmt: skip
    with web_server(lambda r: data) as server:
        (result,) = fetch(server.url)
    assert (result.error, result.num_events) == (None, 1)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (json_answer({"error": {"message": "the queue is full"}}, 503), "the queue is full"),
        (json_answer("?", 404), "status 404"),
        (b"HTTP/1.1 500 X\r\n\r\n", "status 500"),
        (event_stream([*EVENTS, {"error": {"message": "boom"}}]), "boom"),
        (event_stream(EVENTS), "did not end with its usage"),
        (event_stream([{"usage": {"prompt_tokens": None}}]), "did not end with its usage"),
        (event_stream([USAGE])[:2], "connection was lost"),
        (b"", "connection was lost"),
        (b"x" * 70_000, "does not speak HTTP"),
    ],
)
def test_what_goes_wrong_is_in_the_result(answer: Any, words: str) -> None:
    pieces = [answer] if isinstance(answer, bytes) else answer
    if words == "connection was lost" and answer:
        pieces = [p.replace(b"Transfer-Encoding: chunked", b"X: y") for p in pieces]
    with web_server(lambda r: pieces) as server:
        (result,) = fetch(server.url)
    assert result.error is not None
    assert words in result.error
    assert result.end >= result.start


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (result,) = fetch(f"http://127.0.0.1:{free.getsockname()[1]}")
    assert "cannot connect" in str(result.error)


def test_after_an_error_the_connection_is_not_used_again() -> None:
    answers = [json_answer({"error": {"message": "no"}}, 400), event_stream([*EVENTS, USAGE])]
    with web_server(lambda r: answers.pop(0)) as server:
        first, second = fetch(server.url, 2)
    assert (first.error, second.error) == ("no", None)


def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    answers = [event_stream([*EVENTS, USAGE]), b"", event_stream([*EVENTS, USAGE])]
    with web_server(lambda r: answers.pop(0)) as server:
        first, second = fetch(server.url, 2)
    assert (first.error, second.error) == (None, None)
    assert len(server.requests) == 3


def test_chunk() -> None:
    assert chunk(b"data") == b"4\r\ndata\r\n"
