"""Resumable streams: how many there may be, how large, and for whom they count."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from octavo.entrypoints.batches.answers import LineAnswers
from octavo.entrypoints.openai import streams
from octavo.entrypoints.openai.keys import KeyRing
from octavo.entrypoints.openai.streams import StreamStore
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import eventually, serving
from tests.entrypoints.openai.sse_client import streaming
from tests.entrypoints.openai.stream_lab import COMPLETIONS, ENDLESS, again, body


async def test_what_is_forgotten_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_LOG_BYTES", 1000)
    async with serving(FakeEngine(step_seconds=0.001)) as s:
        async with streaming(s, COMPLETIONS, body("SAY:" + "x" * 30, max_tokens=50)) as stream:
            whole = await stream.rest()
        reply = await s.get(f"/v1/streams/{stream.id}?starting_after=0")
        assert (reply.status, reply.error["code"]) == (410, "events_forgotten")
        known = whole[-3]
        assert await again(s, stream.id, last_event_id=known.id) == whole[-2:]


async def test_streams_are_few() -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine) as s:
        s.server.streams = StreamStore(60, max_streams=2)
        ids = []
        for _ in range(3):  # the oldest that has ended makes room
            async with streaming(s, COMPLETIONS, body()) as stream:
                await stream.rest()
            ids.append(stream.id)
            await eventually(lambda: s.server.in_flight == 0)
        statuses = [(await s.get(f"/v1/streams/{i}")).status for i in ids]
        assert statuses == [404, 200, 200]
        async with (
            streaming(s, COMPLETIONS, body(**ENDLESS)) as one,
            streaming(s, COMPLETIONS, body(**ENDLESS)) as two,
        ):
            await asyncio.gather(one.take(1), two.take(1))
            reply = await s.post(COMPLETIONS, body())
            assert (reply.status, reply.error["code"]) == (503, "too_many_streams")
            assert reply.headers["retry-after"]
            assert (await s.completion(stream=True)).status == 200
        for stream in (one, two):
            await s.request("DELETE", f"/v1/streams/{stream.id}", None, {})
        assert len(s.server.streams) == 0


async def test_all_events_together_are_bounded() -> None:
    """First what has ended is forgotten, then the older half of the largest log."""
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine) as s:
        store = s.server.streams = StreamStore(60, max_bytes=20_000)
        async with streaming(s, COMPLETIONS, body()) as ended:
            await ended.rest()
        await eventually(lambda: s.server.in_flight == 0)
        async with streaming(s, COMPLETIONS, body(**ENDLESS)) as large:
            await large.take(60)
        log = store.get(large.id, None).log
        await eventually(lambda: log.num_events > 200)
        assert (await s.get(f"/v1/streams/{ended.id}")).status == 404
        assert (await s.get(f"/v1/streams/{large.id}")).status == 410
        async with streaming(s, COMPLETIONS, body("SAY:small")) as small:
            whole = await small.rest()
        assert "".join(e.json["choices"][0]["text"] for e in whole if e.id) == "small"
        assert 0 < store._num_bytes <= 20_000
        for stream in list(store._streams.values()):
            store.drop(stream)
        assert store._num_bytes == 0


async def test_one_that_goes_on_by_itself_counts_for_its_key(tmp_path: Any) -> None:
    path = tmp_path / "keys.json"
    path.write_text('{"keys": [{"name": "a", "key": "k", "max_concurrent_requests": 1}]}')
    path.chmod(0o600)
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine, keys=KeyRing(path=str(path))) as s:
        async with streaming(s, COMPLETIONS, body(**ENDLESS), x_api_key="k") as stream:
            await stream.take(1)
        account = next(iter(s.server.keys)).account
        await eventually(lambda: account.num_concurrent == 0)
        reply = await s.post(COMPLETIONS, body(), x_api_key="k")
        assert (reply.status, reply.error["code"]) == (429, "rate_limit_exceeded")
        assert account.num_in_background == 1
        async with streaming(s, f"/v1/streams/{stream.id}", x_api_key="k") as resumed:
            await resumed.take(2)
        await eventually(lambda: account.num_concurrent == 0)
        deleted = await s.request("DELETE", f"/v1/streams/{stream.id}", None, {"x_api_key": "k"})
        assert deleted.status == 200
        await eventually(lambda: engine.is_idle)
        assert account.generation_tokens > 2  # those that nobody read are counted, too
        assert (await s.post(COMPLETIONS, body(), x_api_key="k")).status == 200


async def test_it_has_one_place_in_the_queue_until_its_first_token() -> None:
    engine = FakeEngine(step_seconds=0.001)
    engine.gate.clear()
    async with serving(engine, max_num_queued_reqs=1) as s:
        say = body("SAY:" + "x" * 300, max_tokens=400)
        request = asyncio.ensure_future(s.post(COMPLETIONS, say))
        await eventually(lambda: engine.num_unfinished)
        assert s.server.admission.num_reqs == 1
        assert (await s.post(COMPLETIONS, body())).status == 503
        engine.gate.set()
        await eventually(lambda: s.server.admission.num_reqs == 0)
        assert not request.done()
        assert (await request).status == 200


async def test_a_line_of_a_batch_begins_none() -> None:
    async with serving() as s:
        line = json.dumps(body(**ENDLESS)).encode()
        answer = await LineAnswers(s.server).answer(COMPLETIONS, line, None)
        assert (answer[0], json.loads(answer[2])["error"]["param"]) == (400, "stream")
        assert s.engine.is_idle
        assert len(s.server.streams) == s.server.in_flight == 0


async def test_what_has_ended_does_not_count_for_its_key() -> None:
    """Not for its share; it is what makes room, of the key that has the most."""
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine, keys=KeyRing(["alice", "bob"])) as s:
        store = s.server.streams = StreamStore(60, s.server.keys.ledger, max_streams=4)

        async def whole_stream(key: str) -> str:
            async with streaming(s, COMPLETIONS, body(), x_api_key=key) as stream:
                await stream.rest()
            await eventually(lambda: not store._streams[stream.id].is_active)
            return stream.id

        bobs = await whole_stream("bob")
        alices = [await whole_stream("alice") for _ in range(4)]  # the first one gives way
        async with (
            streaming(s, COMPLETIONS, body(**ENDLESS), x_api_key="alice") as one,
            streaming(s, COMPLETIONS, body(**ENDLESS), x_api_key="alice") as two,
        ):
            await asyncio.gather(one.take(1), two.take(1))
            reply = await s.post(COMPLETIONS, body(), x_api_key="alice")
            assert (reply.status, reply.error["code"]) == (503, "too_many_streams")
            assert "2 resumable streams of this API key" in reply.error["message"]
            assert set(store._streams) == {bobs, alices[-1], one.id, two.id}
            reply = await s.get(f"/v1/streams/{alices[-1]}", x_api_key="alice")
            assert reply.status == 200  # it is kept for her, share or not
            assert (await s.post(COMPLETIONS, body(), x_api_key="bob")).status == 200
        for stream in (one, two):
            await s.request("DELETE", f"/v1/streams/{stream.id}", None, {"x_api_key": "alice"})
        await eventually(lambda: store.places._ledger.num_streams() == 0)


def test_a_key_does_not_displace_anothers_events() -> None:
    store = StreamStore(60, max_bytes=1000)
    made = {}
    for name, size in (("bob", 300), ("alice", 300), ("alice's second", 700)):
        made[name] = stream = store.new_stream(name.partition("'")[0])
        store.keep(stream)
        stream.num_readers = int(size == 700)
        for _ in range(size // 100):
            stream.log.append(b"x" * 100)
            store.count(100)
    assert made["bob"].log.num_bytes == 300
    assert made["alice"] not in store
    for _ in range(3):
        made["alice's second"].log.append(b"x" * 100)
        store.count(100)
    assert made["bob"] in store
    assert 0 < made["alice's second"].log.num_bytes <= 700
    assert store._num_bytes == sum(s.log.num_bytes for s in store._streams.values()) <= 1000
