from __future__ import annotations

from typing import Any

import pytest

from octavo.entrypoints.openai.config import ServerConfig
from octavo.entrypoints.openai.gate import Gate, is_request_id
from octavo.entrypoints.openai.state import serve_engines
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import MODEL, serving

PATHS = [
    "/version",
    "/metrics",
    "/v1/models",
    "/docs",
    "/openapi.json",
    "/nope",
    "/dashboards",
    "//health",
]


async def test_keys() -> None:
    async with serving(api_key=["first-key", "Schlüssel"]) as s:
        assert (await s.get("/health")).status == 200
        assert (await s.request("HEAD", "/health", None, {})).status == 200
        wrong = [
            *(None, "", "Bearer", "Bearer ", "Bearer wrong", "Bearer first-ke", "first-key"),
            *(
                "Basic first-key",
                "Bearer first-keyy",
                "Bearer FIRST-KEY",
                "Bearer first-key second",
            ),
        ]
        for path in PATHS:
            for value in wrong:
                headers = {} if value is None else {"authorization": value}
                reply = await s.get(path, **headers)
                assert reply.status == 401, (path, value)
                assert reply.error["code"] == "invalid_api_key"
                assert reply.headers["www-authenticate"] == "Bearer"
        for method in ("OPTIONS", "DELETE", "POST"):
            assert (await s.request(method, "/v1/models", None, {})).status == 401
        assert (await s.completion()).status == 401
        for key in ("Bearer first-key", "bearer first-key", "Bearer " + "Schlüssel"):
            header = key.encode().decode("latin-1")
            assert (await s.get("/v1/models", authorization=header)).status == 200
        body = {"model": MODEL, "prompt": "SAY:a"}
        reply = await s.post("/v1/completions", body, authorization="Bearer first-key")
        assert reply.status == 200


async def test_two_authorizations_are_refused() -> None:
    async with serving(api_key=["k"]) as s:
        head = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\n"
        assert (await s.raw(head + b"\r\n")).status == 200
        for more in (b"authorization: Bearer x", b"authorization: Bearer k"):
            assert (await s.raw(head + more + b"\r\n\r\n")).status == 401
        same = b"x-api-key: k\r\n"
        assert (await s.raw(head + same + b"\r\n")).status == 200
        assert (await s.raw(head + 2 * same + b"\r\n")).status == 401


async def test_a_request_has_one_host() -> None:
    async with serving() as s:
        reply = await s.raw(b"GET /health HTTP/1.1\r\n\r\n")
        assert reply.status == 400
        assert "no Host" in reply.error["message"]
        assert (await s.raw(b"GET /health HTTP/1.0\r\n\r\n")).status == 200
        head = b"GET /health HTTP/1.1\r\nhost: x\r\n"
        assert (await s.raw(head + b"\r\n")).status == 200
        reply = await s.raw(head + b"Host: x\r\n\r\n")
        assert reply.status == 400
        assert "more than one Host" in reply.error["message"]


async def test_a_body_is_not_read_without_a_key() -> None:
    async with serving(api_key=["k"], body_timeout=0.01) as s:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
        assert (await s.raw(head)).status == 401


async def test_without_keys_all_is_open() -> None:
    async with serving() as s:
        assert (await s.get("/v1/models")).status == 200
        assert (await s.get("/v1/models", authorization="Bearer whatever")).status == 200


async def test_request_ids() -> None:
    async with serving() as s:
        reply = await s.get("/nope", x_request_id="Trace.1:2_3-4")
        assert reply.headers["x-request-id"] == "Trace.1:2_3-4"
        for bad in ("", "a b", "a/b", "x" * 129, "é", "a;b"):
            reply = await s.get("/health", x_request_id=bad)
            assert reply.headers["x-request-id"] != bad
            assert is_request_id(reply.headers["x-request-id"])
        a, b = [(await s.get("/health")).headers["x-request-id"] for _ in range(2)]
        assert a != b


@pytest.mark.parametrize(
    ("value", "ok"),
    [("a", True), ("x" * 128, True), ("x" * 129, False), ("", False), ("a\n", False)],
)
def test_is_request_id(value: str, ok: bool) -> None:
    assert is_request_id(value) is ok


async def test_a_key_comes_as_x_api_key_too() -> None:
    async with serving(api_key=["k"]) as s:
        for headers, status in (
            ({"x_api_key": "k"}, 200),
            ({"x_api_key": "wrong"}, 401),
            ({"x_api_key": "Bearer k"}, 401),
            ({"x_api_key": "k", "authorization": "Bearer k"}, 200),
            ({"x_api_key": "wrong", "authorization": "Bearer k"}, 401),
            ({"x_api_key": "k", "authorization": "Bearer wrong"}, 401),
            ({"x_api_key": "k", "authorization": "Basic k"}, 401),
        ):
            assert (await s.get("/v1/models", **headers)).status == status, headers


async def test_the_application_knows_requests_by_their_key() -> None:
    names = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        names.append(scope["octavo.key"])

    async def nothing(*message: Any) -> None:
        pass

    for keys in (["first", "second"], None):
        gate = Gate(
            app, serve_engines({MODEL: FakeEngine()}, ServerConfig(api_key=keys)), frozenset()
        )
        for header, value in (
            (b"authorization", b"Bearer first"),
            (b"x-api-key", b"first"),
            (b"x-api-key", b"second"),
        ):
            scope = {"type": "http", "http_version": "1.0", "path": "/x", "method": "GET"}
            scope["headers"] = [(header, value)]
            await gate(scope, nothing, nothing)
    one, same, other, *without = names
    assert one == same != other
    assert "first" not in one
    assert without == [None] * 3
