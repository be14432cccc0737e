"""A real server (uvicorn, loopback) around a fake engine, and a small HTTP client."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from starlette.routing import Route

from octavo.entrypoints.openai.app import build_app
from octavo.entrypoints.openai.config import ServerConfig
from octavo.entrypoints.openai.gate import Gate
from octavo.entrypoints.openai.http_server import serve
from octavo.entrypoints.openai.keys import KeyRing
from octavo.entrypoints.openai.sockets import bind
from octavo.entrypoints.openai.state import Server, serve_engines
from octavo.entrypoints.openai.stop_signal import StopSignal
from octavo.entrypoints.openai.tls import ServerTLS
from octavo.entrypoints.openai.tracing import Tracing
from tests.entrypoints.openai.fake_engine import FakeEngine

MODEL = "fake"


@dataclass
class Reply:
    """A whole HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return strict_json(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error of an OpenAI-shaped body, whose shape is checked."""
        assert set(self.json) == {"error"}, self.body
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        return error

    @property
    def events(self) -> list[Any]:
        """The events of a stream; it must have ended with [DONE]."""
        assert self.headers["content-type"].startswith("text/event-stream"), self.body
        lines = self.body.decode().split("\n\n")
        assert lines.pop() == ""
        assert all(line.startswith("data: ") for line in lines)
        assert lines.pop() == "data: [DONE]"
        return [strict_json(line[6:]) for line in lines]


@dataclass
class Running:
    """A server that runs."""

    engine: FakeEngine
    server: Server
    stop: StopSignal
    task: asyncio.Task[int]
    port: int
    client_tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return f"{'http' if self.client_tls is None else 'https'}://127.0.0.1:{self.port}"

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.request("GET", path, None, headers)

    async def post(self, path: str, body: Any, **headers: str) -> Reply:
        return await self.request("POST", path, body, headers)

    async def completion(self, prompt: Any = "SAY:hello", **fields: Any) -> Reply:
        return await self.post("/v1/completions", {"model": MODEL, "prompt": prompt, **fields})

    async def chat(self, content: Any = "SAY:hello", **fields: Any) -> Reply:
        messages = [{"role": "user", "content": content}]
        body = {"model": MODEL, "messages": messages, **fields}
        return await self.post("/v1/chat/completions", body)

    async def request(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Reply:
        reader, writer = await self.connect()
        try:
            writer.write(request_bytes(method, path, body, headers))
            return await read_reply(reader, method)
        finally:
            await close(writer)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1", self.port, limit=2**24, ssl=self.client_tls
        )

    async def raw(self, data: bytes) -> Reply:
        """Send bytes as they are."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            return await read_reply(reader)
        finally:
            await close(writer)

    async def metrics(self) -> dict[str, float]:
        """Sample (with its labels, but without model_name) → value."""
        text = (await self.get("/metrics")).body.decode()
        samples = {}
        for line in text.splitlines():
            if line.startswith("octavo:"):
                name, value = line.rsplit(" ", 1)
                key = (
                    name.replace(f'model_name="{MODEL}"', "").replace(",}", "}").replace("{,", "{")
                )
                samples[key.replace("{}", "").removeprefix("octavo:")] = float(value)
        return samples


@asynccontextmanager
async def serving(
    engine: FakeEngine | None = None,
    *,
    drain_seconds: float = 5.0,
    keys: KeyRing | None = None,
    tls: ServerTLS | None = None,
    client_tls: ssl.SSLContext | None = None,
    tracing: Tracing | None = None,
    **config: Any,
) -> AsyncIterator[Running]:
    """A server; at the end nothing may be in flight and the engine must be idle."""
    engine = engine or FakeEngine()
    server = serve_engines({MODEL: engine}, ServerConfig(**config), keys)
    server.tracing = tracing
    stop, ready = StopSignal(), asyncio.Event()
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        task = asyncio.ensure_future(
            serve(
                build_app(server),
                server,
                sock,
                stop,
                drain_seconds=drain_seconds,
                on_ready=ready.set,
                tls=tls,
            )
        )
        await ready.wait()
        try:
            yield Running(engine, server, stop, task, port, client_tls)
            if not task.done():
                await eventually(lambda: server.in_flight == 0 and engine.is_idle)
                assert server.admission.num_reqs == server.admission.num_tokens == 0
        finally:
            stop.request()
            await asyncio.wait_for(task, 20)


def all_routes() -> set[tuple[str, str]]:
    """Method and path of every route that a server can have."""
    config = ServerConfig(server_dev_mode=True, enable_tokenizer_info_endpoint=True)
    gate = build_app(serve_engines({MODEL: FakeEngine()}, config))
    assert isinstance(gate, Gate)
    there = set()
    for route in gate._app.routes:  # type: ignore[attr-defined]
        assert isinstance(route, Route)
        (method,) = (route.methods or set()) - {"HEAD"}
        there.add((method, route.path_format))
    return there


async def eventually(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        await asyncio.sleep(0.005)


def request_bytes(method: str, path: str, body: Any, headers: Mapping[str, str]) -> bytes:
    """An HTTP request; `body` is bytes, a value for JSON, or None. `_` in header names is `-`."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"host": "test", "content-length": str(len(data)), "content-type": "application/json"}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + data


async def read_reply(reader: asyncio.StreamReader, method: str = "GET") -> Reply:
    """A response: with a length, in chunks, or until the connection closes."""
    status_line = await asyncio.wait_for(reader.readline(), 20)
    status = int(status_line.split()[1])
    headers = {}
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    if method == "HEAD":
        body = b""
    elif headers.get("transfer-encoding") == "chunked":
        body = b"".join([chunk async for chunk in chunks(reader)])
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body = await reader.read()
    return Reply(status, headers, body)


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The chunks of a chunked body."""
    while size := int(await asyncio.wait_for(reader.readline(), 20), 16):
        yield await reader.readexactly(size)
        await reader.readline()
    await reader.readline()


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection at once."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def strict_json(data: bytes | str) -> Any:
    """JSON without NaN and infinities."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(data, parse_constant=refuse)
