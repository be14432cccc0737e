"""The processes of `octavo serve` on the default model: killed, stopped and left by clients."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.entrypoints.openai.harness import Reply, close, request_bytes
from tests.entrypoints.openai.live import Live, live

pytestmark = pytest.mark.model


@pytest.fixture
def own_server(smollm2_path: Path) -> Iterator[Live]:
    with live() as server:
        yield server


LONG = {"prompt": "Once", "max_tokens": 100, "ignore_eos": True, "stream": True}


async def _streaming(server: Live, num: int) -> list[asyncio.Task[Reply]]:
    """Streams, each of which has had its first token."""
    tasks = [asyncio.ensure_future(server.apost("/v1/completions", LONG)) for _ in range(num)]
    begun = 0.0
    while begun < num:
        begun = await asyncio.to_thread(server.metric, "time_to_first_token_seconds_count")
    return tasks


async def _long_streams(server: Live, num: int, act: Callable[[], object]) -> list[Reply]:
    tasks = await _streaming(server, num)
    act()
    return await asyncio.gather(*tasks)


def test_the_core_is_killed(own_server: Live) -> None:
    """Its end is seen; nobody waits until it has been silent for too long."""
    core = own_server.core
    for reply in asyncio.run(_long_streams(own_server, 4, lambda: os.kill(core, signal.SIGKILL))):
        assert reply.events[-1]["error"]["code"] == "engine_dead"
    assert own_server.get("/health").status == 503
    assert own_server.process.wait(20) == 1


def test_the_core_is_stopped(own_server: Live) -> None:
    """SIGSTOP: /health tells it within seconds, and that it is over; requests only wait."""
    core = own_server.core

    def until_health(status: int) -> Reply:
        deadline = time.monotonic() + 20
        while (reply := own_server.get("/health")).status != status:
            assert time.monotonic() < deadline, f"{status} never came"
            time.sleep(0.1)
        return reply

    async def main() -> None:
        [stream] = await _streaming(own_server, 1)
        os.kill(core, signal.SIGSTOP)
        try:
            reply = await asyncio.to_thread(until_health, 503)
        finally:
            os.kill(core, signal.SIGCONT)
        assert reply.error["code"] == "engine_unresponsive"
        await asyncio.to_thread(until_health, 200)
        assert (await stream).events[-1]["choices"][0]["finish_reason"] == "length"

    asyncio.run(main())


def test_the_front_end_is_killed(own_server: Live) -> None:
    core = own_server.core
    own_server.process.kill()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{core}").exists():
        assert time.monotonic() < deadline, "the core outlives its front end"
        time.sleep(0.05)


def test_stop_under_load(own_server: Live) -> None:
    core = own_server.core
    stop = own_server.process.terminate
    for reply in asyncio.run(_long_streams(own_server, 4, stop)):
        assert reply.events[-1]["choices"][0]["finish_reason"] == "length"
    assert own_server.process.wait(20) == 0
    assert not Path(f"/proc/{core}").exists()


def test_dropped_streams_leave_nothing(own_server: Live) -> None:
    """64 streams, a third dropped: one round."""
    rng = random.Random(0)

    async def client(drop: bool) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", own_server.port)
        body = {"prompt": "Once", "max_tokens": 30, "ignore_eos": True, "stream": True}
        data = request_bytes("POST", "/v1/completions", body, {})
        writer.write(data.replace(b"host:", b"connection: close\r\nhost:"))
        answer = await (reader.read(rng.randrange(1, 3000)) if drop else reader.read(-1))
        await close(writer)
        return answer.count(b"[DONE]")

    async def burst() -> list[int]:
        return await asyncio.gather(*[client(i % 3 == 0) for i in range(64)])

    assert [n for i, n in enumerate(asyncio.run(burst())) if i % 3] == [1] * 42
    own_server.until_idle()
