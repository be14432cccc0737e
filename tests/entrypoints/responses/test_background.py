"""Responses that are made in the background: resumed, cancelled, and counted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import MODEL, eventually, serving
from tests.entrypoints.openai.official_client import client_of
from tests.entrypoints.responses.responses_lab import (
    check_events,
    said,
)


async def test_nothing_comes_after_the_last_event() -> None:
    """A client that has lost but the end of the connection asks for what comes then."""
    async with serving() as s, client_of(s) as client:
        response = await client.responses.create(**said("a", background=True))
        await eventually(lambda: s.server.in_flight == 0)
        path = f"/v1/responses/{response.id}?stream=true"
        last = (await s.get(path)).body.count(b"event: ") - 1
        reply = await s.get(f"{path}&starting_after={last}")
        assert (reply.status, reply.body) == (200, b"")
        assert reply.headers["content-type"].startswith("text/event-stream")


async def test_a_key_has_no_more_in_the_background_than_it_may(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": [{"name": "me", "key": "k", "max_concurrent_requests": 1}]}')
    keys.chmod(0o600)
    engine = FakeEngine()
    engine.gate.clear()
    async with serving(engine, api_key_file=str(keys)) as s, client_of(s, "k") as client:
        first = await client.responses.create(**said("a", background=True))
        with pytest.raises(openai.RateLimitError, match="in the background"):
            await client.responses.create(**said("b", background=True))
        assert (await client.responses.retrieve(first.id)).status == "in_progress"
        engine.gate.set()
        await eventually(lambda: s.server.in_flight == 0)
        second = await client.responses.create(**said("c", background=True))
        await eventually(lambda: s.server.in_flight == 0)
        assert (await client.responses.retrieve(second.id)).output_text == "c"


async def test_a_background_response_goes_on_without_its_client() -> None:
    engine = FakeEngine(step_seconds=0.001)
    engine.gate.clear()
    async with serving(engine) as s, client_of(s) as client:
        response = await client.responses.create(**said("made later", background=True))
        assert (response.status, response.output) == ("queued", [])
        with pytest.raises(openai.ConflictError, match="still being made"):
            await client.responses.create(**said("x", previous_response_id=response.id))
        engine.gate.set()
        await eventually(lambda: s.server.in_flight == 0)
        response = await client.responses.retrieve(response.id)
        assert (response.status, response.output_text) == ("completed", "made later")
        assert response.background is True


async def test_a_background_stream_resumes_where_it_broke_off() -> None:
    """No event is lost or repeated, wherever the first reader left."""
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine) as s, client_of(s) as client:
        for leave_at in (0, 1, 3, 7):
            stream = await client.responses.create(
                **said("0123456789", background=True), stream=True
            )
            events: list[Any] = []
            async for event in stream:
                events.append(event)
                if event.sequence_number == leave_at:
                    break
            await stream.close()
            rest = await client.responses.retrieve(
                events[0].response.id, stream=True, starting_after=leave_at
            )
            events += [event async for event in rest]
            check_events(events)
            assert events[-1].response.output_text == "0123456789"
            whole = await client.responses.retrieve(events[0].response.id, stream=True)
            assert [e.to_json() async for e in whole] == [e.to_json() for e in events]
        sync = await client.responses.create(**said("x"))
        with pytest.raises(openai.BadRequestError, match="in the background"):
            await client.responses.retrieve(sync.id, stream=True)


async def test_a_background_stream_has_one_place_in_the_queue_until_its_first_token() -> None:
    engine = FakeEngine(step_seconds=0.001)
    engine.gate.clear()
    async with serving(engine, max_num_queued_reqs=1) as s, client_of(s) as client:
        stream = await client.responses.create(**said("x" * 300, background=True), stream=True)
        await eventually(lambda: engine.num_unfinished)
        assert s.server.admission.num_reqs == 1
        engine.gate.set()
        await eventually(lambda: s.server.admission.num_reqs == 0)
        assert s.server.in_flight
        events: list[Any] = [event async for event in stream]
        assert events[-1].response.output_text == "x" * 300


async def test_cancelling() -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine) as s, client_of(s) as client:
        response = await client.responses.create(model=MODEL, input="count", background=True)
        await eventually(lambda: engine.stats().generation_tokens > 5)
        cancelled = await client.responses.cancel(response.id)
        assert cancelled.status == "cancelled"
        assert cancelled.output_text.startswith("one t")
        await eventually(lambda: engine.is_idle)
        again = await client.responses.cancel(response.id)
        assert again.model_dump() == cancelled.model_dump()
        sync = await client.responses.create(**said("x"))
        with pytest.raises(openai.BadRequestError):
            await client.responses.cancel(sync.id)
        running = await client.responses.create(model=MODEL, input="count", background=True)
        await client.responses.delete(running.id)
        await eventually(lambda: engine.is_idle)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(running.id)


async def test_many_background_responses_at_once() -> None:
    async with serving(FakeEngine(max_num_seqs=4)) as s, client_of(s) as client:
        responses = await asyncio.gather(
            *(client.responses.create(**said(str(i), background=True)) for i in range(40))
        )
        await eventually(lambda: s.server.in_flight == 0)
        texts = [(await client.responses.retrieve(r.id)).output_text for r in responses]
        assert texts == [str(i) for i in range(40)]
