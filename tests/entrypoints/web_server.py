"""A web server in a thread whose answers the test writes byte by byte."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Answer = Callable[["Request"], "bytes | Iterable[bytes]"]


@dataclass
class Request:
    """What a client sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class WebServer:
    """A server that runs, and all that it was asked."""

    url: str
    requests: list[Request] = field(default_factory=list)


@contextmanager
def web_server(answer: Answer) -> Iterator[WebServer]:
    """Each request gets the bytes of `answer`, written in the pieces given; where the answer has
    no length and is not chunked, the connection closes after it."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = WebServer(f"http://127.0.0.1:{listener.getsockname()[1]}")

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while request := _read(stream):
                server.requests.append(request)
                given = answer(request)
                sent = b""
                try:
                    for piece in [given] if isinstance(given, bytes) else given:
                        connection.sendall(piece)
                        sent += piece
                except OSError:
                    return
                head = sent.partition(b"\r\n\r\n")[0].lower()
                if b"content-length:" not in head and b"chunked" not in head:
                    return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def _read(stream: Any) -> Request | None:
    try:
        first = stream.readline().split()
    except ConnectionError:  # a client that leaves before it has read all resets the connection
        return None
    if len(first) != 3:
        return None
    headers = {}
    while line := stream.readline().strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    body = stream.read(int(headers.get("content-length", 0)))
    return Request(first[0].decode(), first[1].decode(), headers, body)


def json_answer(body: Any, status: int = 200) -> bytes:
    """A whole answer."""
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(data), data)


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event_stream(events: Sequence[Any], *, end: bytes = b"data: [DONE]\n\n") -> list[bytes]:
    """A chunked answer of server-sent events, one chunk each."""
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    pieces = [chunk(b"data: " + json.dumps(e).encode() + b"\n\n") for e in events]
    return [head, *pieces, chunk(end), b"0\r\n\r\n"]
