"""`octavo serve --api-server-count`: several front ends, one server."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.entrypoints.openai.config import ServerConfig
from octavo.entrypoints.openai.front_ends import FrontEnds
from tests.entrypoints.openai.harness import Reply, close, request_bytes
from tests.entrypoints.openai.live import Live, live
from tests.tiny_model import write_tiny_llama


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Live]:
    path = write_tiny_llama(tmp_path)
    with live(str(path), "--api-server-count", "2") as server:
        until(lambda: len(front_ends(server)) == 1)
        until(lambda: server.metric("front_ends_answering") == 2)
        yield server


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def front_ends(server: Live) -> list[int]:
    """Process ids of the front ends after the first."""
    return [
        pid
        for pid in children(server.process.pid)
        if "front_end_proc" in Path(f"/proc/{pid}/cmdline").read_text()
    ]


def runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return "Z" not in stat.rpartition(")")[2].split()[0]


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def count(server: Live, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels."""
    text = server.get("/metrics").body.decode()
    samples = re.finditer(rf"^octavo:{name}\{{([^}}]*)\}} (\S+)$", text, re.MULTILINE)
    return sum(float(s[2]) for s in samples if all(f'{k}="{v}"' in s[1] for k, v in labels.items()))


BODY = {"prompt": [1, 2, 3], "max_tokens": 8, "ignore_eos": True, "temperature": 0}


async def complete(server: Live, num: int) -> list[Reply]:
    """All at once, each under the same id."""
    headers = {"x-request-id": "same"}
    return await asyncio.gather(
        *(server.request("POST", "/v1/completions", BODY, headers) for _ in range(num))
    )


async def test_they_are_one_server(server: Live) -> None:
    """Forty requests of one id, whoever takes them: the same answer, and all of them counted."""
    replies = await complete(server, 40)
    assert {r.status for r in replies} == {200}
    assert len({r.json["choices"][0]["text"] for r in replies}) == 1
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, lambda: _http_count(server)) == 40
    tokens = await loop.run_in_executor(None, lambda: count(server, "generation_tokens_total"))
    assert tokens == 40 * 8  # the core's own count, not twice
    [pid] = front_ends(server)
    os.kill(pid, signal.SIGSTOP)
    try:  # /metrics answers all the same, where the first one takes the connection: one of 16
        asked = [
            asyncio.ensure_future(server.request("GET", "/metrics", None, {})) for _ in range(16)
        ]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        text = done.pop().result().body.decode()
        assert "octavo:front_ends_answering 1.0\n" in text
        assert 'route="/v1/completions",status="200"} 40.0\n' in text
        for task in asked:
            task.cancel()
        await asyncio.wait(asked)
    finally:
        os.kill(pid, signal.SIGCONT)
    await asyncio.to_thread(until, lambda: server.metric("front_ends_answering") == 2)


async def test_a_resumable_stream_is_found_by_all_of_them(server: Live) -> None:
    """Streams of both (1 in 2^15 that not), each read again over connections to both."""
    body = {**BODY, "stream": True, "resumable": True}
    whole = [await server.request("POST", "/v1/completions", body, {}) for _ in range(16)]
    ids = [reply.headers["x-stream-id"] for reply in whole]
    assert {stream_id.split("_")[1] for stream_id in ids} == {"0", "1"}
    paths = [f"/v1/streams/{stream_id}" for stream_id in ids]
    asked = (server.request("GET", path, None, {}) for path in paths for _ in range(4))
    again = await asyncio.gather(*asked)
    assert [reply.body for reply in again] == [reply.body for reply in whole for _ in range(4)]
    for path in paths:
        assert (await server.request("DELETE", path, None, {})).status == 200
        assert (await server.request("GET", path, None, {})).status == 404


def _http_count(server: Live) -> float:
    return count(server, "http_requests_total", route="/v1/completions", status="200")


async def _both_streaming(server: Live, num: int = 16) -> list[asyncio.Task[bytes]]:
    """Streams that have begun, in both front ends with all likelihood (1 in 2^15 that not)."""
    begun = []

    async def stream() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = {**BODY, "max_tokens": 200, "stream": True}
        writer.write(request_bytes("POST", "/v1/completions", body, {}))
        data = b""
        try:
            while piece := await reader.read(4096):
                if not data:
                    begun.append(1)
                data += piece
                if data.endswith(b"0\r\n\r\n"):
                    break
        except ConnectionError:
            pass
        await close(writer)
        return data

    tasks = [asyncio.create_task(stream()) for _ in range(num)]
    while len(begun) < num:
        await asyncio.sleep(0.005)
    return tasks


async def test_one_that_is_killed_is_replaced(server: Live) -> None:
    """Its streams break off; the others', and the server, go on, and no block stays in use."""
    [pid] = front_ends(server)
    tasks = await _both_streaming(server)
    os.kill(pid, signal.SIGKILL)
    data = await asyncio.gather(*tasks)
    whole = [d for d in data if b"data: [DONE]" in d]
    assert whole  # those of the first front end
    await asyncio.to_thread(until, lambda: front_ends(server) not in ([], [pid]))
    await asyncio.to_thread(until, lambda: server.metric("front_ends_answering") == 2)
    await asyncio.to_thread(until, lambda: count(server, "kv_cache_usage_perc") == 0)
    assert {r.status for r in await complete(server, 8)} == {200}


async def test_a_signal_lets_both_end_what_they_began(server: Live) -> None:
    [pid] = front_ends(server)
    tasks = await _both_streaming(server)
    server.process.send_signal(signal.SIGTERM)
    data = await asyncio.gather(*tasks)
    bad = [d[-300:] for d in data if b"data: [DONE]" not in d or b'"error"' in d]
    assert not bad, bad
    assert await asyncio.to_thread(server.process.wait, 20) == 0
    assert not runs(pid)


async def _stream_in_the_first(server: Live) -> str:
    """The id of a resumable stream that goes on in the first front end and in no other, and that
    stands still: the engine is paused."""
    body = {**BODY, "max_tokens": 500, "stream": True, "resumable": True}
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request_bytes("POST", "/v1/completions", body, {}))
        head = (await reader.readuntil(b"\nid: ")).decode()
        await server.request("POST", "/pause?mode=keep", None, {})
        await close(writer)
        stream_id = head.partition("x-stream-id: ")[2].split()[0]
        goes_on = await asyncio.to_thread(server.metric, "num_requests_running")
        if goes_on and stream_id.startswith("stream_0_"):
            return stream_id
        await server.request("DELETE", f"/v1/streams/{stream_id}", None, {})
        await server.request("POST", "/resume", None, {})


async def test_nobody_waits_at_one_that_has_drained(tmp_path: Path) -> None:
    """The second one has nothing to end, and goes; the first one goes on with a stream. Whoever
    comes then, at either's listener, is told to come again."""
    path = write_tiny_llama(tmp_path)
    with live(str(path), "--api-server-count", "2", "--server-dev-mode") as server:
        await asyncio.to_thread(until, lambda: server.metric("front_ends_answering") == 2)
        stream_id = await _stream_in_the_first(server)
        [second] = front_ends(server)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(until, lambda: not runs(second))
        replies = await complete(server, 16)
        assert {reply.status for reply in replies} == {503}
        assert all(reply.headers["retry-after"] for reply in replies)
        await server.request("DELETE", f"/v1/streams/{stream_id}", None, {})
        assert await asyncio.to_thread(server.process.wait, 20) == 0


def test_none_outlives_the_first(server: Live) -> None:
    pids = children(server.process.pid)
    assert len(pids) == 2  # the core and a front end
    server.process.kill()
    server.process.wait()
    until(lambda: not any(map(runs, pids)), 10)


def test_none_outlives_the_core(server: Live) -> None:
    [front_end] = front_ends(server)
    [core] = [pid for pid in children(server.process.pid) if pid != front_end]
    os.kill(core, signal.SIGKILL)
    assert server.process.wait(20) == 1
    assert not runs(front_end)


def test_all_read_the_keys_again(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"

    def write(key: str) -> None:
        keys.write_text(f'{{"keys": [{{"name": "alice", "key": "{key}"}}]}}')
        keys.chmod(0o600)

    def status(server: Live, path: str, key: str) -> int:
        return asyncio.run(server.request("GET", path, None, {"x-api-key": key})).status

    def statuses(server: Live, key: str) -> set[int]:
        """Of many connections, which the kernel spreads over the front ends."""
        return {status(server, "/v1/models", key) for _ in range(16)}

    write("first")
    model = tmp_path / "model"
    model.mkdir()
    path = str(write_tiny_llama(model))
    with live(path, "--api-server-count", "2", "--api-key-file", str(keys)) as server:
        until(lambda: status(server, "/load", "first") == 200)  # the second one answers, too
        assert statuses(server, "first") == {200}
        before = front_ends(server)
        write("second")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: statuses(server, "second") == {200})
        assert statuses(server, "first") == {401}
        assert front_ends(server) == before


def test_a_keys_limits_are_of_all_of_them(tmp_path: Path) -> None:
    """Whoever answers; and what they ask each other costs nothing."""
    keys = tmp_path / "keys.json"
    names = '{"name": "alice", "key": "a", "requests_per_minute": 12}, {"name": "b", "key": "b"}'
    keys.write_text(f'{{"keys": [{names}]}}')
    keys.chmod(0o600)

    def status(path: str, key: str) -> int:
        return asyncio.run(server.request("GET", path, None, {"x-api-key": key})).status

    model = tmp_path / "model"
    model.mkdir()
    path = str(write_tiny_llama(model))
    with live(path, "--api-server-count", "2", "--api-key-file", str(keys)) as server:
        until(lambda: status("/load", "b") == 200)  # the second one answers, too
        started = time.monotonic()
        statuses = [status(path, "a") for _ in range(12) for path in ("/v1/models", "/load")]
        refilled = (time.monotonic() - started) * 12 / 60
        assert set(statuses) == {200, 429}
        assert 12 <= statuses.count(200) <= 12 + refilled + 1


def front_ends_of(folder: Path, sock: socket.socket) -> FrontEnds:
    """One besides the first; nothing runs."""
    core: Any = SimpleNamespace(folder=folder, addresses=["ipc://a", "ipc://b"])
    return FrontEnds(ServerConfig(api_server_count=2), core, [sock])


async def test_what_cannot_be_started_is_tried_again_and_then_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    async def refuse(*args: Any, **options: Any) -> None:
        tries.append(args)
        raise OSError("too many processes")

    monkeypatch.setattr("octavo.entrypoints.openai.front_ends.RESTART_SECONDS", 0.0)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    with socket.socket() as sock:
        others = front_ends_of(tmp_path, sock)
        others.start()
        await asyncio.wait_for(others.failed.wait(), 20)
        await others.close()
    assert len(tries) == 5


async def test_one_that_starts_during_a_drain_is_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = asyncio.create_subprocess_exec

    async def slowly(*args: Any, **options: Any) -> asyncio.subprocess.Process:
        others.drain()
        return await create("sleep", "60", stdin=options["stdin"])

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slowly)
    with socket.socket() as sock:
        others = front_ends_of(tmp_path, sock)
        others.start()
        await asyncio.wait_for(asyncio.gather(*others._keepers), 20)
        assert others.running == 0
        await others.close()
