"""Requests passed on from one front end to another: nothing is lost on the way."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from octavo.entrypoints.openai.app import build_app
from octavo.entrypoints.openai.front_ends import listen_privately
from octavo.entrypoints.openai.keys import KeyRing
from octavo.entrypoints.openai.siblings import AnswerSiblings, PassOn, fetch, owner_of
from octavo.entrypoints.openai.state import Server
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import (
    Reply,
    close,
    eventually,
    read_reply,
    request_bytes,
    serving,
)


class Echo:
    """Says what it was asked; /stream gives three pieces, the last one when it is let go; /broken
    breaks off."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.client_left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        said = {
            "method": scope["method"],
            "target": scope["raw_path"].decode() + "?" + scope["query_string"].decode(),
            "headers": {n.decode(): v.decode() for n, v in scope["headers"]},
            "body": body.decode(),
        }
        path = scope["path"]
        headers = [(b"content-type", b"application/json"), (b"x-two", b"a"), (b"x-two", b"b")]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        if path.endswith("/stream"):
            for piece in (b"one", b"two"):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            watch = asyncio.ensure_future(self._until_left(receive))
            await asyncio.wait(
                {watch, asyncio.ensure_future(self.go_on.wait())},
                return_when=asyncio.FIRST_COMPLETED,
            )
            watch.cancel()
            await send({"type": "http.response.body", "body": b"three", "more_body": False})
            return
        if path.endswith("/broken"):
            raise RuntimeError("on purpose")
        await send({"type": "http.response.body", "body": json.dumps(said).encode()})

    async def _until_left(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.client_left.set()


async def _here(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})


@asynccontextmanager
async def _listening(app: Any, **where: Any) -> AsyncIterator[uvicorn.Server]:
    config = uvicorn.Config(app, log_config=None, lifespan="off", loop="none", **where)
    server = uvicorn.Server(config)
    server.capture_signals = _no_signals  # type: ignore[method-assign]
    running = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield server
    finally:
        server.should_exit = True
        await running


@asynccontextmanager
async def passing_on(
    folder: Path, server: Server | None = None
) -> AsyncIterator[tuple[int, Echo, str]]:
    """(port of a front end that passes on, what it passes on to, its socket)."""
    own = server or Server({})
    path = str(folder / "http-0.sock")
    echo = Echo()
    async with (
        _listening(echo, uds=path),
        _listening(PassOn(_here, [path, "here"], 1, own), host="127.0.0.1", port=0) as http,
    ):
        yield http.servers[0].sockets[0].getsockname()[1], echo, path


def _no_signals() -> Any:
    from contextlib import nullcontext

    return nullcontext()


async def ask(port: int, data: bytes) -> Reply:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await read_reply(reader)
    finally:
        await close(writer)


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/metrics", 0),
        ("/v1/files", 0),
        ("/v1/files/file-1/content", 0),
        ("/v1/filesystem", None),
        ("/v1/chat/completions", None),
        (f"/v1/streams/stream_0_{'0f' * 16}", 0),
        (f"/v1/streams/stream_12_{'0f' * 16}", 12),
        (f"/v1/streams/stream_12_{'0f' * 16}/more", None),
        ("/v1/streams/stream_x_0", None),
        ("/v1/streams/nothing", None),
    ],
)
def test_what_is_owned(path: str, owner: int | None) -> None:
    assert owner_of(path) == owner


@pytest.mark.parametrize("index", [1, 7])
async def test_a_stream_of_its_own_or_of_nobody_stays(index: int, tmp_path: Path) -> None:
    app = PassOn(_here, ["/nowhere/0", str(tmp_path / "nobody.sock")], 1, Server({}))
    async with _listening(app, host="127.0.0.1", port=0) as server:
        port = server.servers[0].sockets[0].getsockname()[1]
        reply = await ask(port, request_bytes("GET", f"/v1/streams/stream_{index}_0f", None, {}))
    assert reply.body == b"here"


async def test_a_stream_of_another_front_end_is_passed_on(tmp_path: Path) -> None:
    async with passing_on(tmp_path) as (port, _, _):
        reply = await ask(port, request_bytes("GET", "/v1/streams/stream_0_0f?x=1", None, {}))
    assert reply.json["target"] == "/v1/streams/stream_0_0f?x=1"


async def test_what_is_not_owned_stays(tmp_path: Path) -> None:
    async with passing_on(tmp_path) as (port, _, _):
        reply = await ask(port, request_bytes("GET", "/v1/models", None, {}))
    assert reply.body == b"here"


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_request_and_answer_arrive_whole(tmp_path: Path, method: str) -> None:
    body = None if method == "GET" else {"text": "Zoë " * 50_000}
    headers = {"authorization": "Bearer k", "x-request-id": "r1", "te": "trailers"}
    async with passing_on(tmp_path) as (port, _, _):
        reply = await ask(port, request_bytes(method, "/v1/files/a%20b?x=1&y=%2F", body, headers))
    assert reply.status == 201
    assert reply.headers["x-two"] == "b"
    assert reply.json["method"] == method
    assert reply.json["target"] == "/v1/files/a%20b?x=1&y=%2F"
    assert reply.json["headers"]["authorization"] == "Bearer k"
    assert reply.json["headers"]["x-request-id"] == "r1"
    assert "te" not in reply.json["headers"]
    assert reply.json["body"] == ("" if body is None else json.dumps(body))


async def test_a_chunked_body_arrives_whole(tmp_path: Path) -> None:
    head = b"POST /v1/files HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (b"ab", b"c" * 70_000)) + b"0\r\n\r\n"
    async with passing_on(tmp_path) as (port, _, _):
        reply = await ask(port, head + chunks)
    assert reply.json["body"] == "ab" + "c" * 70_000


async def test_a_head_has_no_body(tmp_path: Path) -> None:
    async with passing_on(tmp_path) as (port, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HEAD /v1/files HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        data = await reader.read()
        await close(writer)
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 201")
    assert body == b""


async def test_a_stream_comes_as_it_is_written(tmp_path: Path) -> None:
    async with passing_on(tmp_path) as (port, echo, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes("GET", "/v1/responses/1/stream", None, {}))
        assert b"three" not in await reader.readuntil(b"two")
        echo.go_on.set()
        assert (await reader.read()).endswith(b"three\r\n0\r\n\r\n")
        await close(writer)


async def test_a_client_that_leaves_is_seen_to_leave(tmp_path: Path) -> None:
    async with passing_on(tmp_path) as (port, echo, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes("GET", "/v1/responses/1/stream", None, {}))
        await reader.readuntil(b"two")
        await close(writer)
        await eventually(echo.client_left.is_set)
        assert not echo.go_on.is_set()


async def test_a_front_end_is_not_idle_while_it_passes_on(tmp_path: Path) -> None:
    """Or it would end in a drain, and break off what the first one still answers."""
    server = Server({})
    async with passing_on(tmp_path, server) as (port, echo, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes("GET", "/v1/responses/1/stream", None, {}))
        await reader.readuntil(b"two")
        assert not server.is_idle
        echo.go_on.set()
        await reader.readuntil(b"three")
        await eventually(lambda: server.is_idle)
        await close(writer)


async def test_without_the_first_front_end(tmp_path: Path) -> None:
    app = PassOn(_here, [str(tmp_path / "nobody.sock"), "here"], 1, Server({}))
    async with _listening(app, host="127.0.0.1", port=0) as server:
        port = server.servers[0].sockets[0].getsockname()[1]
        reply = await ask(port, request_bytes("GET", "/v1/files", None, {}))
    assert reply.status == 503
    assert reply.error["code"] == "front_end"


async def test_an_answer_that_breaks_off_is_no_whole_answer(tmp_path: Path) -> None:
    async with passing_on(tmp_path) as (port, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes("GET", "/v1/files/broken", None, {}))
        data = await reader.read()
        await close(writer)
    assert not data.endswith(b"0\r\n\r\n")


async def test_fetch(tmp_path: Path) -> None:
    async with passing_on(tmp_path) as (_, _, path):
        with pytest.raises(OSError, match="201"):
            await fetch(path, "GET", "/metrics", [])
    with pytest.raises(ConnectionRefusedError):
        await fetch(path, "GET", "/metrics", [])


async def test_one_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "silent.sock")
    with listen_privately(path) as sock:
        sock.listen()
        with pytest.raises(OSError, match="did not answer"):
            await fetch(path, "GET", "/metrics", [], seconds=0.05)


async def test_what_concerns_all_reaches_all(tmp_path: Path) -> None:
    """A request that another front end serves is counted, and aborted, by the one that was asked;
    with its key."""
    path = str(tmp_path / "second.sock")
    options = {"server_dev_mode": True, "api_key": ["secret"]}
    key = {"authorization": "Bearer secret"}
    engine = FakeEngine(step_seconds=0.001)
    async with (
        serving(**options) as first,
        serving(engine, **options) as second,
        _listening(AnswerSiblings(build_app(second.server)), uds=path),
    ):
        first.server.siblings = [path]
        body = {"prompt": "count", "max_tokens": 4000, "request_id": "one"}
        request = asyncio.ensure_future(second.post("/v1/completions", body, **key))
        await eventually(lambda: engine.stats().num_running == 1)
        assert (await first.get("/load", **key)).json == {"server_load": 1}
        assert (await first.get("/load", x_api_key="wrong")).status == 401
        for path in ("/load", "/metrics"):
            assert (await first.request("HEAD", path, None, key)).status == 200
        for number in (1, 0):
            reply = await first.post("/abort", {"request_ids": ["cmpl-one"]}, **key)
            assert reply.json == {"num_aborted": number}
        assert (await request).error["code"] == "aborted"
        # What was asked of the second one is a part of requests of the first.
        asked = [route for route, _, _ in second.server.http_requests if route != "other"]
        assert asked == ["/v1/completions"]


async def test_what_concerns_all_is_paid_for_once(tmp_path: Path) -> None:
    path = str(tmp_path / "second.sock")
    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": [{"name": "a", "key": "a", "requests_per_minute": 2}]}')
    keys.chmod(0o600)
    rings = [KeyRing(path=str(keys)) for _ in range(2)]
    async with (
        serving(keys=rings[0]) as first,
        serving(keys=rings[1]) as second,
        _listening(AnswerSiblings(build_app(second.server)), uds=path),
    ):
        first.server.siblings = [path]
        for status in (200, 200, 429):
            assert (await first.get("/load", x_api_key="a")).status == status
        (key,) = rings[1]
        assert key.account.num_requests == 0
        assert (await second.get("/asked/load", x_api_key="a")).status == 404  # no way in
        assert key.account.num_requests == 1
        with pytest.raises(OSError, match="401"):
            await fetch(path, "GET", "/asked/load", [])


async def test_all_without_one_of_them(tmp_path: Path) -> None:
    async with serving() as s:
        s.server.siblings = [str(tmp_path / "nobody.sock")]
        reply = await s.get("/load")
    assert reply.status == 503
    assert reply.error["code"] == "front_end"


async def test_what_is_here_is_aborted_without_one_of_them_too(tmp_path: Path) -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine, server_dev_mode=True) as s:
        s.server.siblings = [str(tmp_path / "nobody.sock")]
        body = {"prompt": "count", "max_tokens": 4000, "request_id": "one"}
        request = asyncio.ensure_future(s.post("/v1/completions", body))
        await eventually(lambda: engine.stats().num_running == 1)
        reply = await s.post("/abort", {"request_ids": ["cmpl-one"]})
        assert reply.error["code"] == "front_end"
        assert (await request).error["code"] == "aborted"


def test_the_socket_of_an_earlier_front_end_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "http-1.sock")
    listen_privately(path).close()  # its file stays
    with listen_privately(path) as later, socket.socket(socket.AF_UNIX) as client:
        later.listen()
        client.connect(path)
        with later.accept()[0] as accepted:
            client.sendall(b"here")
            assert accepted.recv(4) == b"here"
