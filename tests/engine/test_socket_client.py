"""The socket client over real core processes: signs of life, death, calls."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
from tokenizers import Tokenizer

from octavo.config.engine import EngineConfig
from octavo.contracts.messages import EngineOutputs, EngineRequest, FinishReason
from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.structured_outputs import GrammarSource
from octavo.engine import socket_client, wire
from octavo.engine.core_launch import CoreHandle
from octavo.engine.socket_client import SocketClient
from octavo.errors import (
    ConfigError,
    EngineDeadError,
    EngineUnresponsiveError,
    OctavoError,
    RequestError,
)
from tests.tiny_model import write_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@asynccontextmanager
async def started(model: Path, **options: Any) -> AsyncIterator[SocketClient]:
    client = SocketClient(CoreHandle())
    options = {"num_threads": 1, "num_gpu_blocks_override": 64, **options}
    try:
        await client.launch(EngineConfig.from_flat(**options), str(model))
        await client.ready()
        yield client
    finally:
        await client.shutdown()


def with_client(
    model: Path, test: Callable[[SocketClient], Awaitable[None]], **options: Any
) -> None:
    async def main() -> None:
        async with started(model, **options) as client:
            await test(client)

    asyncio.run(main())


def request(request_id: str, max_tokens: int = 4) -> EngineRequest:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, seed=0)
    return EngineRequest(request_id=request_id, prompt_token_ids=[1, 2, 3], sampling_params=params)


async def finished(client: SocketClient, request_id: str) -> FinishReason:
    """Read until a request ends."""
    while True:
        for output in (await client.get_outputs()).outputs:
            if output.request_id == request_id and output.finish_reason is not None:
                return output.finish_reason


async def read_forever(client: SocketClient) -> EngineOutputs:
    while True:
        await client.get_outputs()


async def until_health(client: SocketClient, error: type[Exception] | None) -> None:
    """Wait until `check_health` raises `error`, or nothing."""
    for _ in range(2000):
        try:
            client.check_health()
        except OctavoError as raised:
            if type(raised) is error:
                return
        else:
            if error is None:
                return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


def test_requests_and_calls(model: Path) -> None:
    async def test(client: SocketClient) -> None:
        assert client.info.vocab_size == 257
        await client.add_request(request("a"))
        assert await finished(client, "a") is FinishReason.LENGTH
        reader = asyncio.ensure_future(read_forever(client))
        assert await client.reset_prefix_cache()
        with pytest.raises(OctavoError, match="unknown method 'nonsense'"):
            await client._call("nonsense")
        client.check_health()
        reader.cancel()

    with_client(model, test)


def test_grammars_are_checked_in_the_core(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what comes in front; and taken back where whoever asked has gone."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    async def test(client: SocketClient) -> None:
        reader = asyncio.ensure_future(read_forever(client))
        await client.check_grammar(GrammarSource("regex", "ab"), list(range(256)))
        in_front = GrammarSource("regex", "b", 'prefix: "a"')
        await client.check_grammar(in_front, [tokenizer.token_to_id("a")])
        for grammar, first in (("ab", [256]), ("(a", None)):
            with pytest.raises(RequestError, match="grammar") as refused:
                await client.check_grammar(GrammarSource("regex", grammar), first)
            assert refused.value.param == "structured_outputs"
        called: list[str] = []
        call = client._call

        async def watched(method: str, *arguments: Any) -> Any:
            called.append(method)
            return None if method == "check_grammar" else await call(method, *arguments)

        monkeypatch.setattr(client, "_call", watched)
        task = asyncio.ensure_future(client.check_grammar(GrammarSource("regex", "c"), None))
        while len(called) < 2:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*client._forgetting)
        assert called[-1] == "forget_grammar"
        reader.cancel()

    with_client(model, test)


def test_what_cannot_start_raises_its_own_error(model: Path) -> None:
    async def main() -> None:
        async with started(model, max_model_len=100_000):
            raise AssertionError("it started")

    with pytest.raises(ConfigError, match="max_model_len"):
        asyncio.run(main())


class TestSignsOfLife:
    def test_a_stopped_core_is_noticed_and_may_come_back(
        self, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(socket_client, "MAX_SILENT_BEATS", 2)

        async def test(client: SocketClient) -> None:
            pid = client._link.process.pid
            reader = asyncio.ensure_future(read_forever(client))
            client.check_health()
            os.kill(pid, signal.SIGSTOP)
            try:
                await until_health(client, EngineUnresponsiveError)
                with pytest.raises(EngineUnresponsiveError, match="not been heard of for 3 s"):
                    client.check_health()
            finally:
                os.kill(pid, signal.SIGCONT)
            await until_health(client, None)
            reader.cancel()
            await client.add_request(request("after"))
            assert await finished(client, "after") is FinishReason.LENGTH

        with_client(model, test)

    def test_a_core_that_stays_stopped_is_dead(self, model: Path) -> None:
        async def test(client: SocketClient) -> None:
            os.kill(client._link.process.pid, signal.SIGSTOP)
            with pytest.raises(EngineDeadError, match=r"no progress for 1\.5 s"):
                await read_forever(client)
            client._link.process.kill()  # or the fixture would wait for it

        with_client(model, test, engine_iteration_timeout=1.5)

    def test_a_long_step_is_life(self, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Beats come while the core's loop is in a step that is longer than any silence allowed."""
        monkeypatch.setattr(socket_client, "MAX_SILENT_BEATS", 2)
        step_seconds = 4 * wire.HEARTBEAT_SECONDS

        async def test(client: SocketClient) -> None:
            await client.add_request(request("long", max_tokens=1))
            end = asyncio.ensure_future(finished(client, "long"))
            num_stuck = 0
            while not end.done():
                client.check_health()
                num_stuck = max(num_stuck, client._num_stuck_beats)
                await asyncio.sleep(0.01)
            assert await end is FinishReason.LENGTH
            assert num_stuck > 1

        with_client(model, test, distributed_executor_backend="fake", fake_step_time=step_seconds)

    def test_a_step_that_hangs_is_death(self, model: Path) -> None:
        async def test(client: SocketClient) -> None:
            await client.add_request(request("hangs"))
            with pytest.raises(EngineDeadError, match="no progress for 2 s"):
                await finished(client, "hangs")
            with pytest.raises(EngineDeadError, match="no progress"):
                client.check_health()
            with pytest.raises(EngineDeadError, match="no progress"):
                await client.add_request(request("later"))
            await client.abort_requests(["hangs"])
            client._link.process.kill()

        with_client(
            model,
            test,
            distributed_executor_backend="fake",
            fake_step_time=60.0,
            engine_iteration_timeout=2.0,
        )


def test_a_core_that_cannot_be_reached_is_dead_before_anybody_saw_it_die() -> None:
    """A further front end hears of the core's end a moment later than the first."""

    class Nobody:
        identity = b"core"

        def __init__(self) -> None:
            self.socket = zmq.Context.instance().socket(zmq.ROUTER)
            self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)

        def watch(self, on_exit: Callable[[int], None]) -> None:
            pass

        def close(self) -> None:
            self.socket.close()

    async def main() -> None:
        client = SocketClient(Nobody())
        with pytest.raises(EngineDeadError, match="cannot be reached"):
            await client.add_request(request("a"))
        with pytest.raises(EngineDeadError, match="cannot be reached"):
            await client.is_paused()
        await client.shutdown()

    asyncio.run(main())


def test_the_end_of_the_process_reaches_everyone(model: Path) -> None:
    async def test(client: SocketClient) -> None:
        async def never_answered() -> bool:
            return await client.reset_prefix_cache()

        os.kill(client._link.process.pid, signal.SIGSTOP)
        call = asyncio.ensure_future(never_answered())
        reader = asyncio.ensure_future(read_forever(client))
        await asyncio.sleep(0.05)
        client._link.process.kill()
        results = await asyncio.wait_for(
            asyncio.gather(call, reader, return_exceptions=True), timeout=20
        )
        assert [type(r) for r in results] == [EngineDeadError, EngineDeadError]
        assert all("status -9" in str(r) for r in results)

    with_client(model, test)
