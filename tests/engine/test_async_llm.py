"""AsyncLLM over a real core process with a tiny model."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.config.engine import EngineConfig
from octavo.contracts.engine_view import WaitReason
from octavo.contracts.messages import RequestOutput
from octavo.contracts.pause_mode import PauseMode
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.llm_engine import LLMEngine
from octavo.engine.socket_client import SocketClient
from octavo.errors import (
    ConfigError,
    DownloadError,
    EngineDeadError,
    MemoryPlanError,
    ModelError,
    RequestError,
)
from tests.tiny_model import write_tiny_llama

OPTIONS: dict[str, Any] = {
    "num_threads": 1,
    "num_gpu_blocks_override": 128,
    "max_num_seqs": 8,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@asynccontextmanager
async def running(model: Path, **options: Any) -> AsyncIterator[AsyncLLM]:
    config = EngineConfig.from_flat(model=str(model), **{**OPTIONS, **options})
    engine = await AsyncLLM.start(config)
    try:
        yield engine
    finally:
        await engine.shutdown()


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(
        **{"max_tokens": 24, "seed": 1, "ignore_eos": True, "logprobs": 2, **fields}
    )


async def collect(engine: AsyncLLM, prompt: Any, p: SamplingParams, name: str) -> RequestOutput:
    """The whole answer, put together from its deltas where it comes in deltas."""
    whole: RequestOutput | None = None
    async for output in engine.generate(prompt, p, name):
        if whole is None or p.output_kind is not RequestOutputKind.DELTA:
            whole = output
            continue
        whole.finished = output.finished
        for new in output.outputs:
            old = next((c for c in whole.outputs if c.index == new.index), None)
            if old is None:
                whole.outputs.append(new)
                continue
            old.text += new.text
            old.token_ids += new.token_ids
            old.logprobs = (old.logprobs or []) + (new.logprobs or [])
            old.finish_reason, old.stop_reason = new.finish_reason, new.stop_reason
            old.cumulative_logprob = new.cumulative_logprob
    assert whole is not None
    whole.outputs.sort(key=lambda c: c.index)
    return whole


def process_of(engine: AsyncLLM) -> subprocess.Popen[bytes]:
    assert isinstance(engine._client, SocketClient)
    return engine._client._link.process


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


def offline(model: Path, prompts: list[str], p: SamplingParams) -> list[RequestOutput]:
    done: dict[str, RequestOutput] = {}
    with LLMEngine.from_config(EngineConfig.from_flat(model=str(model), **OPTIONS)) as engine:
        for i, prompt in enumerate(prompts):
            engine.add_request(str(i), prompt, p)
        while engine.has_unfinished_requests():
            done |= {o.request_id: o for o in engine.step() if o.finished}
    return [done[str(i)] for i in range(len(prompts))]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_streams_equal_the_offline_answers(
    model: Path, depth: int, kind: RequestOutputKind
) -> None:
    prompts = [f"prompt number {i}: é 你好" for i in range(12)]

    async def main() -> list[RequestOutput]:
        async with running(model, pipeline_depth=depth) as engine:
            p = params(n=2, output_kind=kind)
            jobs = [collect(engine, prompt, p, f"r{i}") for i, prompt in enumerate(prompts)]
            results = await asyncio.gather(*jobs)
            assert engine.num_unfinished == 0
            return results

    for got, expected in zip(asyncio.run(main()), offline(model, prompts, params(n=2))):
        assert got.outputs == expected.outputs
        assert got.prompt == expected.prompt
        assert got.finished


def with_engine(model: Path, test: Callable[[AsyncLLM], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with running(model, **options) as engine:
            await test(engine)

    asyncio.run(main())


def test_leaving_a_generator_aborts(model: Path) -> None:
    async def test(engine: AsyncLLM) -> None:
        for i in range(20):
            stream = engine.generate("x", params(n=3, max_tokens=400), f"r{i}")
            async for _ in stream:
                break
            await stream.aclose()
        await until(lambda: engine.stats().num_running == 0)
        assert engine.num_unfinished == 0
        assert engine.stats().num_used_blocks == 0
        assert engine.metrics.aborted["disconnect"] == 60
        assert engine.metrics.num_tracked == 0
        assert engine.metrics.stats.num_waiting == 0

    with_engine(model, test)


def test_cancelling_the_task_aborts(model: Path) -> None:
    async def test(engine: AsyncLLM) -> None:
        job = asyncio.create_task(collect(engine, "x", params(max_tokens=400), "r"))
        await until(lambda: engine.stats().num_running == 1)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        await until(lambda: engine.stats().num_running == 0)
        await collect(engine, "x", params(), "r")  # the id is free again

    with_engine(model, test)


def test_abort_gives_a_last_output(model: Path) -> None:
    async def test(engine: AsyncLLM) -> None:
        outputs = []
        async for output in engine.generate("x", params(max_tokens=400), "r"):
            outputs.append(output)
            await engine.abort("r")
        assert outputs[-1].finished
        assert outputs[-1].outputs[0].finish_reason == "abort"
        await engine.abort("unknown")
        await until(lambda: engine.stats().num_used_blocks == 0)

    with_engine(model, test)


def test_wrong_requests_harm_nobody(model: Path) -> None:
    async def test(engine: AsyncLLM) -> None:
        job = asyncio.create_task(collect(engine, "neighbour", params(), "r"))
        await asyncio.sleep(0)
        for prompt in ("", [], [-1], [10**9], {"prompt": 3}, "x" * 10_000, None):
            with pytest.raises(RequestError):
                await collect(engine, prompt, params(), "bad")
        alone = await job
        assert (await collect(engine, "neighbour", params(), "r")).outputs == alone.outputs

    with_engine(model, test)


def test_an_id_in_use_is_refused(model: Path) -> None:
    async def test(engine: AsyncLLM) -> None:
        job = asyncio.create_task(collect(engine, "x", params(max_tokens=100), "same"))
        await until(lambda: engine.num_unfinished == 1)
        with pytest.raises(RequestError, match="in use"):
            await collect(engine, "y", params(), "same")
        assert len((await job).outputs[0].token_ids) == 100

    with_engine(model, test)


def test_an_id_is_in_use_until_its_last_output_is_read(model: Path) -> None:
    async def test(engine: AsyncLLM) -> None:
        stream = engine.generate("x", params(output_kind=RequestOutputKind.DELTA), "same")
        first = await anext(stream)
        await until(lambda: engine.num_unfinished == 0)
        with pytest.raises(RequestError, match="in use"):
            await collect(engine, "y", params(), "same")
        ids = first.outputs[0].token_ids
        async for output in stream:
            ids = ids + output.outputs[0].token_ids
        assert len(ids) == 24
        await collect(engine, "y", params(), "same")

    with_engine(model, test)


def test_stop_strings_end_the_core_too(model: Path) -> None:
    async def test(engine: AsyncLLM) -> None:
        whole = await collect(engine, "x", params(temperature=0, max_tokens=200), "a")
        text = whole.outputs[0].text
        stop = text[5:7]
        cut = await collect(engine, "x", params(temperature=0, max_tokens=200, stop=stop), "b")
        assert cut.outputs[0].text == text[: text.find(stop)]
        assert cut.outputs[0].stop_reason == stop
        await until(lambda: engine.stats().num_used_blocks == 0)
        assert engine.metrics.finished["stop"] == 1

    with_engine(model, test)


def test_text_helpers(model: Path) -> None:
    async def test(engine: AsyncLLM) -> None:
        ids = await engine.tokenize("hé")
        assert engine.tokenizer.decode(ids) == "hé"
        chat = await engine.render_chat([{"role": "user", "content": "hi"}])
        assert engine.tokenizer.decode(chat) == "user: hi\nassistant: "
        with pytest.raises(RequestError):
            await engine.render_chat([{"role": 5}])

    with_engine(model, test)


def test_prefix_cache_can_be_reset(model: Path) -> None:
    async def test(engine: AsyncLLM) -> None:
        prompt = "p" * 40
        assert (await collect(engine, prompt, params(), "a")).num_cached_tokens == 0
        assert (await collect(engine, prompt, params(), "b")).num_cached_tokens == 32
        assert await engine.reset_prefix_cache()
        assert (await collect(engine, prompt, params(), "c")).num_cached_tokens == 0

    with_engine(model, test)


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_pause(model: Path, mode: PauseMode) -> None:
    """In the core's process: those that have begun end, go on, or stay; those that come wait."""

    async def test(engine: AsyncLLM) -> None:
        # Where they do not end by themselves, they must not be done before the pause comes.
        first_params = params(max_tokens=100 if mode == "wait" else 450)
        begun = asyncio.ensure_future(collect(engine, "abc", first_params, "begun"))
        await until(lambda: engine.stats().generation_tokens > 0)
        await engine.pause_generation(mode=mode)
        assert await engine.is_paused()
        late = asyncio.ensure_future(collect(engine, "abc", params(max_tokens=4), "late"))
        await until(lambda: engine.stats().num_waiting == 1)
        view = await engine.observe()
        assert [r.reason for r in view.requests if r.reason] == [WaitReason.PAUSED]
        assert view.stats.num_used_blocks == 0 or mode == "keep"
        assert not late.done()
        await engine.resume_generation()
        assert not await engine.is_paused()
        [done] = (await late).outputs
        assert len(done.token_ids) == 4
        [first] = (await begun).outputs
        assert first.finish_reason == ("abort" if mode == "abort" else "length")

    with_engine(model, test)


def test_encode(model: Path) -> None:
    """A vector from the core's process is that of this one; wrong requests raise."""
    with LLMEngine.from_config(EngineConfig.from_flat(model=str(model), **OPTIONS)) as offline:
        offline.add_request("a", "abc", PoolingParams(pooling_type="MEAN"))
        while not (outputs := offline.step()):
            pass
    expected = outputs[0].pooled
    assert expected is not None

    async def test(engine: AsyncLLM) -> None:
        mean = PoolingParams(pooling_type="MEAN")
        async for output in engine.encode("abc", mean, "vector"):
            np.testing.assert_array_equal(output.outputs.data, expected)
        with pytest.raises(RequestError, match="hidden size"):
            async for _ in engine.encode("abc", PoolingParams(dimensions=10**6), "vector"):
                pass

    with_engine(model, test)


def test_a_start_that_is_given_up_waits_for_no_download(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, end = threading.Event(), threading.Event()

    def never(*_: Any, **__: Any) -> Any:
        begun.set()
        end.wait()

    monkeypatch.setattr("octavo.models.files.resolve_model", never)

    async def main() -> None:
        start = asyncio.ensure_future(AsyncLLM.start(EngineConfig.from_flat(model=str(model))))
        await asyncio.to_thread(begun.wait)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start

    asyncio.run(main())  # it joins the loop's own threads
    end.set()


class TestDeath:
    def test_of_the_core_reaches_everyone(self, model: Path) -> None:
        async def test(engine: AsyncLLM) -> None:
            await engine.check_health()
            jobs = [
                asyncio.create_task(collect(engine, "x", params(max_tokens=400), f"r{i}"))
                for i in range(12)
            ]
            await until(lambda: engine.stats().num_running > 0)
            process_of(engine).kill()
            results = await asyncio.wait_for(
                asyncio.gather(*jobs, return_exceptions=True), timeout=2
            )
            assert all(isinstance(r, EngineDeadError) for r in results)
            with pytest.raises(EngineDeadError, match="-9"):
                await engine.check_health()
            with pytest.raises(EngineDeadError):
                await collect(engine, "x", params(), "later")
            with pytest.raises(EngineDeadError):
                await engine.reset_prefix_cache()
            assert engine.num_unfinished == 0
            assert engine.metrics.aborted["engine_dead"] == 12

        with_engine(model, test)

    def test_shutdown_drains(self, model: Path) -> None:
        async def main() -> None:
            config = EngineConfig.from_flat(model=str(model), **OPTIONS)
            engine = await AsyncLLM.start(config)
            job = asyncio.create_task(collect(engine, "x", params(max_tokens=100), "r"))
            await until(lambda: engine.stats().num_running == 1)
            stopping = asyncio.create_task(engine.shutdown(drain_seconds=30))
            await asyncio.sleep(0)
            with pytest.raises(EngineDeadError, match="shutting down"):
                await collect(engine, "y", params(), "late")
            assert len((await job).outputs[0].token_ids) == 100
            await stopping
            await engine.shutdown()
            assert process_of(engine).returncode == 0

        asyncio.run(main())

    def test_shutdown_without_patience(self, model: Path) -> None:
        async def main() -> None:
            config = EngineConfig.from_flat(model=str(model), **OPTIONS)
            engine = await AsyncLLM.start(config)
            job = asyncio.create_task(collect(engine, "x", params(max_tokens=450), "r"))
            await until(lambda: engine.stats().num_running == 1)
            await engine.shutdown()
            with pytest.raises(EngineDeadError, match="shut down"):
                await job
            assert process_of(engine).returncode == 0
            assert engine.metrics.aborted["shutdown"] == 1
            assert engine.metrics.aborted["engine_dead"] == 0

        asyncio.run(main())

    def test_text_that_waits_for_a_thread_ends_with_the_engine(self, model: Path) -> None:
        """As an error that clients understand, and not as a cancellation that nobody asked for."""

        async def main() -> None:
            config = EngineConfig.from_flat(model=str(model), **OPTIONS)
            engine = await AsyncLLM.start(config)
            go_on = threading.Event()
            jobs = [asyncio.create_task(engine._in_thread(go_on.wait, 20)) for _ in range(40)]
            await asyncio.sleep(0)
            await engine.shutdown()
            go_on.set()
            results = await asyncio.gather(*jobs, return_exceptions=True)
            waited = [r for r in results if r is not True]
            assert waited
            assert {type(r) for r in waited} == {EngineDeadError}
            with pytest.raises(EngineDeadError):
                await engine.tokenize("late")

        asyncio.run(main())

    def test_one_loop_can_start_another_engine(self, model: Path) -> None:
        """Nothing of the first is left on the loop; the second gets its descriptors' numbers."""

        async def main() -> None:
            for _ in range(2):
                async with running(model) as engine:
                    first = await collect(engine, "x", params(), "r")
                    assert len(first.outputs[0].token_ids) == 24
                with pytest.raises((DownloadError, ModelError)):
                    await AsyncLLM.start(EngineConfig.from_flat(model=str(model / "nothing")))

        asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_gpu_blocks_override": 4, "max_model_len": 512}, MemoryPlanError),
        ({"max_model_len": 100_000}, ConfigError),
    ],
)
def test_what_cannot_start_raises_its_own_error(
    model: Path, options: dict[str, Any], error: type[Exception]
) -> None:
    async def main() -> None:
        await AsyncLLM.start(EngineConfig.from_flat(model=str(model), **{**OPTIONS, **options}))

    with pytest.raises(error, match="max_model_len"):
        asyncio.run(main())


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    async def main() -> None:
        await AsyncLLM.start(EngineConfig.from_flat(model=str(tmp_path / "nothing")))

    with pytest.raises((DownloadError, ModelError), match="nothing"):
        asyncio.run(main())
