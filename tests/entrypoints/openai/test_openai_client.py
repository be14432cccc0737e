"""The official client, unmodified, against a server on a loopback port."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import MODEL, Running, eventually, serving

PIECES = [
    *("hello ", "Zoë ", "你好", "日本語の", " end", "\n"),
    *("👨‍👩‍👧‍👦", "🇫🇷", "e\u0301", "🌶\ufe0f", "a\u0300\u0316"),
    *("\\n", '"', "{}", "\u200d", "\U0010ffff", "\x7f", "\t", "data: [DONE]\n\n", "</s>"),
]


def client_of(s: Running, **options: Any) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0, **options)


async def test_streams_join_to_the_whole() -> None:
    """Deltas joined are the final text, ids and logprobs, for random texts with stop strings cut at
    every place."""
    rng = random.Random(0)
    async with serving() as s, client_of(s) as client:
        for number in range(60):
            text = "".join(rng.choices(PIECES, k=rng.randrange(1, 8)))
            start = rng.randrange(len(text))
            stop = text[start : start + rng.randrange(1, 9)] if number % 2 else None
            options: dict[str, Any] = {
                "model": MODEL,
                "messages": [{"role": "user", "content": "SAY:" + text}],
                "max_tokens": rng.choice([3, 7, 200]),
                "stop": stop,
                "logprobs": True,
                "top_logprobs": number % 3,
                "extra_body": {
                    "return_token_ids": True,
                    "include_stop_str_in_output": number % 4 == 1,
                },
            }
            whole = await client.chat.completions.create(**options)
            said = whole.choices[0].message.content
            assert said is not None
            limit = text if stop is None else text[: text.find(stop)]
            if stop is not None and number % 4 == 1:
                limit += stop
            assert text.startswith(said)
            if options["max_tokens"] == 200:
                assert said == limit
            pieces, ids, logprobs, reasons = [], [], [], []
            async for chunk in await client.chat.completions.create(stream=True, **options):
                [choice] = chunk.choices
                pieces.append(choice.delta.content)
                ids += getattr(choice, "token_ids", None) or []
                logprobs += (choice.logprobs.content or []) if choice.logprobs else []
                reasons += [choice.finish_reason] if choice.finish_reason else []
                assert said.startswith("".join(pieces))
            assert "".join(pieces) == said
            assert ids == whole.choices[0].token_ids  # type: ignore[attr-defined]
            assert whole.choices[0].logprobs is not None
            assert logprobs == whole.choices[0].logprobs.content
            assert reasons == [whole.choices[0].finish_reason]


async def test_completions() -> None:
    async with serving() as s, client_of(s) as client:
        whole = await client.completions.create(
            model=MODEL, prompt=["SAY:#a", "SAY:#b"], n=2, logprobs=2, max_tokens=10
        )
        assert [c.text for c in whole.choices] == ["0a", "1a", "0b", "1b"]
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 12
        texts = [""] * 4
        usage = None
        async for chunk in await client.completions.create(
            model=MODEL,
            prompt=["SAY:#a", "SAY:#b"],
            n=2,
            stream=True,
            stream_options={"include_usage": True},
        ):
            usage = chunk.usage
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        assert texts == ["0a", "1a", "0b", "1b"]
        assert usage is not None
        assert usage.completion_tokens == 12


async def test_errors() -> None:
    engine = FakeEngine()
    async with serving(engine) as s, client_of(s) as client:
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.completions.create(model="nope", prompt="x")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model=MODEL, prompt="x", temperature=3)
        assert caught.value.param == "temperature"
        with pytest.raises(openai.BadRequestError, match="at least 1"):
            await client.completions.create(model=MODEL, prompt="x", max_tokens=0, stream=True)
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "FAIL:"}], stream=True
        )
        with pytest.raises(openai.APIError, match="this request met an error"):
            async for _ in stream:
                pass
        with pytest.raises(openai.InternalServerError):
            await client.completions.create(model=MODEL, prompt="FAIL:")
    async with serving(api_key=["k"]) as s:
        async with client_of(s) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        async with AsyncOpenAI(base_url=s.url + "/v1", api_key="k") as client:
            assert [m.id async for m in client.models.list()] == [MODEL]
            assert (await client.models.retrieve(MODEL)).id == MODEL


async def test_leaving_a_stream_aborts_it() -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine) as s, client_of(s) as client:
        stream = await client.completions.create(
            model=MODEL,
            prompt="count",
            max_tokens=3000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for _ in stream:
            break
        await stream.close()
        await eventually(lambda: engine.is_idle)
    assert engine.metrics.aborted["disconnect"] == 1


async def test_a_retry_succeeds_when_the_queue_has_room() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    async with serving(engine, max_num_queued_reqs=1) as s:
        first = asyncio.ensure_future(s.completion())
        await eventually(lambda: s.server.admission.num_reqs == 1)
        async with AsyncOpenAI(base_url=s.url + "/v1", api_key="x", max_retries=3) as client:
            second = asyncio.ensure_future(client.completions.create(model=MODEL, prompt="SAY:b"))
            await eventually(lambda: s.server.admission.rejections["queued_reqs"])
            engine.gate.set()
            assert (await second).choices[0].text == "b"
        assert (await first).status == 200


def _with_the_sync_client(url: str) -> list[str]:
    with OpenAI(base_url=url + "/v1", api_key="none") as client:
        whole = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "SAY:whole"}]
        )
        stream = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "SAY:stream"}], stream=True
        )
        with stream:
            pieces = [c.choices[0].delta.content or "" for c in stream]
        return [whole.choices[0].message.content or "", "".join(pieces)]


async def test_the_sync_client() -> None:
    async with serving() as s:
        assert await asyncio.to_thread(_with_the_sync_client, s.url) == ["whole", "stream"]
