"""`stream_options.include_progress`: chunks that clients pass over, and the truth in them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import MODEL, Reply, Running, eventually, serving
from tests.entrypoints.openai.live import live
from tests.entrypoints.openai.sse_client import parse, streaming
from tests.tiny_model import write_tiny_llama

OPTIONS = {"include_progress": True}


def told(events: list[Any]) -> list[tuple[int | None, int]]:
    """What a stream tells of the progress of its one prompt, before all else."""
    reports = [event["progress"] for event in events if "progress" in event]
    assert [event.get("progress") for event in events[: len(reports)]] == reports
    assert all(event["choices"] == [] for event in events[: len(reports)])
    assert {report["index"] for report in reports} <= {0}
    return [(report["queue_position"], report["prompt_tokens_processed"]) for report in reports]


def rest(events: list[Any]) -> list[Any]:
    """The other events, but for what is another in every answer."""
    changing = ("id", "created", "request_id")
    return [
        {k: v for k, v in event.items() if k not in changing}
        for event in events
        if "progress" not in event
    ]


async def send(s: Running, route: str, options: dict[str, Any], **fields: Any) -> Reply:
    text = "a question of thirty-two tokens, SAY:#yes"
    if route == "chat":
        return await s.chat(text, stream=True, stream_options=options, **fields)
    if route == "completion":
        return await s.completion(text, stream=True, stream_options=options, **fields)
    body = {"token_ids": list(text.encode()), "sampling_params": fields, "stream": True}
    return await s.post("/inference/v1/generate", {**body, "stream_options": options})


@pytest.mark.parametrize("route", ["chat", "completion", "generate"])
@pytest.mark.parametrize("usage", [{}, {"include_usage": True, "continuous_usage_stats": True}])
async def test_a_long_prompt(route: str, usage: dict[str, bool]) -> None:
    """With n, log probabilities and ids; the other events are those of a stream without it."""
    async with serving(FakeEngine(prefill_chunk=10)) as s:
        fields: dict[str, Any] = {"n": 2, "logprobs": True if route == "chat" else 1}
        if route != "generate":
            fields["return_token_ids"] = True
        with_it = (await send(s, route, {**OPTIONS, **usage}, **fields)).events
        without = (await send(s, route, usage, **fields)).events
        reports = told(with_it)
        assert reports == [(None, 10 * (i + 1)) for i in range(len(reports))]
        num_prompt = with_it[0]["progress"]["prompt_tokens"]
        assert reports[-1][1] < num_prompt <= reports[-1][1] + 10
        for events in (with_it, without):
            for event in events:
                if event.get("usage"):
                    event["usage"].pop("prompt_tokens_details")  # the second time it is cached
        assert rest(with_it) == rest(without)
        assert told(without) == []


async def test_the_queue() -> None:
    engine = FakeEngine(max_num_seqs=1, step_seconds=0.001)
    async with serving(engine) as s:
        engine.gate.clear()
        others = []
        for i in range(3):
            others.append(asyncio.ensure_future(s.completion("SAY:abc")))
            while engine.num_unfinished == i:
                await asyncio.sleep(0.001)
        last = asyncio.ensure_future(s.completion("SAY:abc", stream=True, stream_options=OPTIONS))
        await eventually(lambda: engine.num_unfinished == 4)
        engine.gate.set()
        assert told((await last).events) == [(2, 0), (1, 0), (0, 0)]
        assert {reply.status for reply in await asyncio.gather(*others)} == {200}


async def test_several_prompts_tell_apart() -> None:
    async with serving(FakeEngine(prefill_chunk=4)) as s:
        reply = await s.completion(["SAY:a", "SAY: long"], stream=True, stream_options=OPTIONS)
        reports = [event["progress"] for event in reply.events if "progress" in event]
        by_prompt = [
            [r["prompt_tokens_processed"] for r in reports if r["index"] == i] for i in (0, 1)
        ]
        assert by_prompt == [[4], [4, 8]]
        assert [r["prompt_tokens"] for r in reports if r["index"] == 1] == [9, 9]


async def test_the_official_client_passes_over_it() -> None:
    async with (
        serving(FakeEngine(prefill_chunk=8)) as s,
        AsyncOpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        text, reports = "", []
        async for chunk in await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "SAY:hello"}],
            stream=True,
            extra_body={"stream_options": OPTIONS},
        ):
            for choice in chunk.choices:
                text += choice.delta.content or ""
            if not chunk.choices:
                reports.append((chunk.model_extra or {})["progress"]["prompt_tokens_processed"])
        assert text == "hello"
        assert reports
        assert reports == [8 * (i + 1) for i in range(len(reports))]
        async with client.beta.chat.completions.stream(
            model=MODEL,
            messages=[{"role": "user", "content": "SAY:hello"}],
            extra_body={"stream_options": OPTIONS},
        ) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == "hello"


async def test_it_is_for_streams() -> None:
    async with serving() as s:
        for stream in (False, None):
            reply = await s.chat(stream=stream, stream_options=OPTIONS)
            assert reply.error["param"] == "stream_options"
        assert (await s.chat(stream=True, stream_options={"include_progress": 1})).status == 400


async def test_a_resumable_stream_is_known_while_it_waits() -> None:
    """With progress, an event tells its id before there is a token: then it may be left."""
    engine = FakeEngine(max_num_seqs=1, step_seconds=0.001)
    async with serving(engine) as s:
        first = asyncio.ensure_future(s.completion("SAY:" + "x" * 100, max_tokens=200))
        await eventually(lambda: engine.stats().num_running == 1)
        body = {"prompt": "SAY:b", "stream": True, "resumable": True, "stream_options": OPTIONS}
        async with streaming(s, "/v1/completions", body) as stream:
            [report] = await stream.take(1)
        assert report.json["progress"]["queue_position"] == 0
        assert not first.done()
        assert (await first).status == 200
        reply = await s.get(f"/v1/streams/{stream.id}", last_event_id=report.id)
        text = [e.json["choices"][0]["text"] for e in parse(reply.body) if e.id]
        assert "".join(text) == "b"


def test_what_the_engine_tells(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path)
    options = ("--max-num-batched-tokens", "32", "--max-num-seqs", "4")
    with live(str(path), *options) as server:
        fields = {"stream": True, "stream_options": OPTIONS, "max_tokens": 2, "ignore_eos": True}
        reply = server.complete([i % 50 + 1 for i in range(100)], **fields)
        assert told(reply.events) == [(None, 32), (None, 64), (None, 96)]
