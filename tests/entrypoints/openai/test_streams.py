"""Resumable streams: nothing lost, nothing twice, nothing kept for ever."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from openai import AsyncOpenAI, AsyncStream
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import MODEL, eventually, serving
from tests.entrypoints.openai.sse_client import DONE, Event, data_of, parse, streaming
from tests.entrypoints.openai.stream_lab import CHAT, COMPLETIONS, ENDLESS, again, body, chat_body


@pytest.mark.parametrize(
    ("path", "request_body"),
    [
        (CHAT, chat_body("SAY:#abc", n=2, logprobs=True, stream_options={"include_usage": True})),
        (COMPLETIONS, body("SAY:äöü", logprobs=1, return_token_ids=True)),
        (COMPLETIONS, body("FAIL:")),
    ],
    ids=["chat", "completions", "failing"],
)
async def test_wherever_it_breaks_off_nothing_is_lost_or_repeated(
    path: str, request_body: dict[str, Any]
) -> None:
    async with serving(FakeEngine(step_seconds=0.001)) as s:
        for _ in range(2):  # the second time the prompt is cached, as it will be
            async with streaming(s, path, request_body) as stream:
                whole = await stream.rest()
        numbered = [event for event in whole if event.id]
        assert [e.number for e in numbered] == list(range(len(numbered)))
        assert {e.id.rpartition(":")[0] for e in numbered} == {stream.id}
        assert whole[-1] == Event("", DONE)
        # Behind the last event before a failure comes an HTTP error.
        for num in range(1, len(numbered) + bool(whole[-2].id)):
            async with streaming(s, path, request_body) as stream:
                first = await stream.take(num)
            rest = await again(s, stream.id, last_event_id=first[-1].id)
            assert data_of(first + rest) == data_of(whole)
            assert [e.number for e in (first + rest) if e.id] == list(range(len(numbered)))
            assert await again(s, stream.id) == first + rest


async def test_a_stream_is_the_same_without_and_with_numbers() -> None:
    async with serving() as s:
        fields = {"n": 2, "logprobs": True, "stream_options": {"include_usage": True}}
        async with streaming(s, CHAT, chat_body("SAY:#abc", **fields)) as stream:
            numbered = await stream.rest()
        async with streaming(s, CHAT, chat_body("SAY:#abc", resumable=False, **fields)) as stream:
            plain = await stream.rest()
        assert "x-stream-id" not in stream.headers
        assert not any(event.id for event in plain)

        def by_choice(events: list[Event]) -> list[list[Any]]:
            """Choices of one output may come in one event or another: not those of one choice."""
            said = data_of(events)
            for value in said:
                usage = value.get("usage")
                if usage:
                    usage.pop("prompt_tokens_details")  # the second time it is cached
            return [[v for v in said if _index(v) == i] for i in (0, 1, None)]

        assert by_choice(numbered) == by_choice(plain)


def _index(value: dict[str, Any]) -> int | None:
    return next((choice["index"] for choice in value.get("choices", ())), None)


@pytest.mark.parametrize("num", range(1, 8))
async def test_the_official_client(num: int) -> None:
    """It tells nothing of ids: the response's header names the stream, and chunks are counted."""
    async with (
        serving(FakeEngine(step_seconds=0.001)) as s,
        AsyncOpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "SAY:hello"}],
            stream=True,
            extra_body={"resumable": True},
        )
        chunks = [await stream.__anext__() for _ in range(num)]
        stream_id = stream.response.headers["x-stream-id"]
        await stream.close()
        rest = await client.get(
            f"/streams/{stream_id}",
            cast_to=ChatCompletionChunk,
            options={"params": {"starting_after": num - 1}},
            stream=True,
            stream_cls=AsyncStream[ChatCompletionChunk],
        )
        chunks += [chunk async for chunk in rest]
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "hello"
        assert [c.choices[0].finish_reason for c in chunks][-1] == "stop"
        whole = await client.get(
            f"/streams/{stream_id}",
            cast_to=ChatCompletionChunk,
            stream=True,
            stream_cls=AsyncStream[ChatCompletionChunk],
        )
        assert [c.to_json() async for c in whole] == [c.to_json() for c in chunks]


async def test_the_official_client_on_completions() -> None:
    async with (
        serving(FakeEngine(step_seconds=0.001)) as s,
        AsyncOpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.completions.create(
            model=MODEL, prompt="SAY:hello", stream=True, extra_body={"resumable": True}
        )
        chunks = [await stream.__anext__() for _ in range(2)]
        await stream.close()
        rest = await client.get(
            f"/streams/{stream.response.headers['x-stream-id']}",
            cast_to=Completion,
            options={"headers": {"Last-Event-ID": stream.response.headers["x-stream-id"] + ":1"}},
            stream=True,
            stream_cls=AsyncStream[Completion],
        )
        chunks += [chunk async for chunk in rest]
        assert "".join(c.choices[0].text for c in chunks) == "hello"


async def test_it_goes_on_without_a_client() -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine) as s:
        async with streaming(s, COMPLETIONS, body("SAY:" + "x" * 200, max_tokens=300)) as stream:
            first = await stream.take(1)
        await eventually(lambda: s.server.in_flight == 0)
        assert engine.is_idle
        assert engine.metrics.aborted["disconnect"] == 0
        rest = await again(s, stream.id, last_event_id=first[-1].id)
        text = "".join(e.json["choices"][0]["text"] for e in [*first, *rest] if e.id)
        assert text == "x" * 200


async def test_but_not_for_ever() -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine, resume_timeout=0.05) as s:
        async with streaming(s, COMPLETIONS, body(**ENDLESS)) as stream:
            await stream.take(1)
        await eventually(lambda: engine.is_idle)
        assert engine.metrics.aborted["disconnect"] == 1
        reply = await s.get(f"/v1/streams/{stream.id}")
        assert (reply.status, reply.error["code"]) == (404, "stream_not_found")
        assert len(s.server.streams) == 0
        async with streaming(s, COMPLETIONS, body()) as stream:
            await stream.rest()
        await eventually(lambda: len(s.server.streams) == 0)


async def test_reading_it_keeps_it() -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine, resume_timeout=0.1) as s:
        async with streaming(s, COMPLETIONS, body(**ENDLESS)) as stream:
            await stream.take(1)
            await asyncio.sleep(0.3)
            async with streaming(s, f"/v1/streams/{stream.id}?starting_after=0") as resumed:
                await resumed.take(1)
        assert s.server.streams.get(stream.id, None).task is not None
        await eventually(lambda: engine.is_idle)


async def test_before_its_first_event_it_ends_with_its_connection() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    async with serving(engine) as s:
        waiting = asyncio.ensure_future(s.post(COMPLETIONS, body(**ENDLESS)))
        await eventually(lambda: engine.num_unfinished)
        assert len(s.server.streams) == 1
        waiting.cancel()
        await eventually(lambda: engine.is_idle and s.server.in_flight == 0)
        assert len(s.server.streams) == 0


async def test_what_is_wrong_is_an_http_error_and_leaves_nothing() -> None:
    async with serving(FakeEngine(max_model_len=64)) as s:
        for wrong, param in (
            (body("x" * 100), "prompt"),
            (body(temperature=5), "temperature"),
            (body(max_tokens=0), "max_tokens"),
            (body(stream=False), "resumable"),
            (body(stream=None), "resumable"),
        ):
            reply = await s.post(COMPLETIONS, wrong)
            assert (reply.status, reply.error["param"]) == (400, param), reply.body
        reply = await s.post(CHAT, chat_body("x", model="nope"))
        assert reply.status == 404
        reply = await s.chat(resumable=True)
        assert reply.error["param"] == "resumable"
        assert len(s.server.streams) == 0
    async with serving(resume_timeout=0) as s:
        reply = await s.post(COMPLETIONS, body())
        assert reply.error["param"] == "resumable"
        assert "--resume-timeout" in reply.error["message"]
        assert (await s.post(COMPLETIONS, body(resumable=False))).status == 200


async def test_only_its_key_may_read_it() -> None:
    async with serving(api_key=["a", "b"]) as s:
        async with streaming(s, COMPLETIONS, body(), x_api_key="a") as stream:
            whole = await stream.rest()
        path = f"/v1/streams/{stream.id}"
        assert parse((await s.get(path, x_api_key="a")).body) == whole
        assert (await s.get(path)).status == 401
        for method in ("GET", "DELETE"):
            reply = await s.request(method, path, None, {"x_api_key": "b"})
            assert (reply.status, reply.error["code"]) == (404, "stream_not_found")
        assert (await s.get("/v1/streams/stream_0_00", x_api_key="a")).status == 404


async def test_two_may_read_at_once() -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with (
        serving(engine) as s,
        streaming(s, COMPLETIONS, body("SAY:" + "ab" * 50, max_tokens=200)) as stream,
    ):
        first = await stream.take(1)
        path = f"/v1/streams/{stream.id}"
        async with (
            streaming(s, path) as one,
            streaming(s, path + "?starting_after=0") as other,
        ):
            whole, rest = await asyncio.gather(one.rest(), other.rest())
        assert [*first, *rest] == whole
        assert len(whole) > 50


async def test_the_place_may_be_given_in_two_ways() -> None:
    async with serving() as s:
        async with streaming(s, COMPLETIONS, body()) as stream:
            whole = await stream.rest()
        path = f"/v1/streams/{stream.id}"
        last = len(whole) - 2
        assert parse((await s.get(path + "?starting_after=1")).body) == whole[2:]
        assert parse((await s.get(path + "?starting_after=-1")).body) == whole
        assert parse((await s.get(f"{path}?starting_after={last}")).body) == whole[-1:]
        header = {"last_event_id": f"{stream.id}:3"}  # a browser changes this alone
        assert parse((await s.get(path + "?starting_after=1", **header)).body) == whole[4:]
        for query in ("starting_after=-2", f"starting_after={last + 1}", "starting_after=x", "a=1"):
            reply = await s.get(f"{path}?{query}")
            assert (reply.status, reply.error["param"]) == (400, query.partition("=")[0]), query
        for wrong in ("1", ":1", "stream_0_0f:1", f"{stream.id}:x", f"{stream.id}:{'9' * 30}"):
            reply = await s.get(path, last_event_id=wrong)
            assert (reply.status, reply.error["param"]) == (400, "Last-Event-ID"), wrong
        reply = await s.get(path, last_event_id=f"{stream.id}:{last + 1}")
        assert (reply.status, reply.error["param"]) == (400, "Last-Event-ID")


async def test_deleting() -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine) as s, streaming(s, COMPLETIONS, body(**ENDLESS)) as stream:
        await stream.take(1)
        path = f"/v1/streams/{stream.id}"
        async with streaming(s, path) as reader:
            reply = await s.request("DELETE", path, None, {})
            assert reply.json == {"id": stream.id, "object": "stream", "deleted": True}
            *_, failure, done = await reader.rest()
        assert failure.json["error"]["code"] == "aborted"
        assert done.data == DONE
        await eventually(lambda: engine.is_idle)
        assert (await s.get(path)).status == 404
        assert (await s.request("DELETE", path, None, {})).status == 404


async def test_what_the_server_aborts_ends_with_an_error_for_all() -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine) as s:
        async with streaming(s, COMPLETIONS, body(**ENDLESS)) as stream:
            await stream.take(1)
            engine.abort_all()
            *_, failure, _ = await stream.rest()
        assert failure.json["error"]["code"] == "aborted"
        last = s.server.streams.get(stream.id, None).log.num_events - 1
        assert (await again(s, stream.id))[-2] == failure
        reply = await s.get(f"/v1/streams/{stream.id}?starting_after={last}")
        assert (reply.status, reply.error["code"]) == (503, "aborted")


@pytest.mark.parametrize("is_left", [False, True])
async def test_a_stopping_server_lets_it_end(is_left: bool) -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine, drain_seconds=20) as s:
        say = body("SAY:" + "x" * 300, max_tokens=400)
        async with streaming(s, COMPLETIONS, say) as stream:
            await stream.take(1)
            if not is_left:
                s.stop.request()
                assert (await stream.rest())[-1].data == DONE
        if is_left:
            s.stop.request()
            assert (await again(s, stream.id))[-1].data == DONE
        assert await s.task == 0
        assert engine.metrics.finished["stop"] == 1


async def test_a_stopping_server_does_not_wait_for_ever() -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine, drain_seconds=0.1) as s:
        async with streaming(s, COMPLETIONS, body(**ENDLESS)) as stream:
            await stream.take(1)
        s.stop.request()
        assert await asyncio.wait_for(s.task, 5) == 0
        assert s.server.in_flight == 0


async def test_ids_tell_nothing_of_each_other() -> None:
    async with serving() as s:
        ids = set()
        for _ in range(3):
            async with streaming(s, COMPLETIONS, body(request_id="same")) as stream:
                await stream.rest()
            assert re.fullmatch(r"stream_0_[0-9a-f]{32}", stream.id)
            ids.add(stream.id)
        assert len(ids) == 3
