from __future__ import annotations

import asyncio
import itertools

import pytest

from octavo.contracts.engine_view import BlockMap, EngineView, RequestView, StepEntry, StepView
from octavo.contracts.messages import SchedulerStats
from octavo.entrypoints.web import feed as feed_module
from octavo.entrypoints.web.feed import Feed


def request(index: int, status: str) -> RequestView:
    return RequestView(
        index=index,
        request_id=str(index),
        status=status,
        arrival=1.0,
        num_prompt_tokens=1,
        num_tokens=2,
        num_computed_tokens=1,
        max_num_tokens=9,
        num_cached_tokens=0,
        num_blocks=1,
        num_preemptions=0,
        priority=0,
    )


class Engine:
    """Three steps between two looks, each with a request of its own that ends with it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int | None]] = []
        self._ids = itertools.count()

    async def observe(self, after_step: int = -1, block_id: int | None = None) -> EngineView:
        self.asked.append((after_step, block_id))
        await asyncio.sleep(0.01)
        ids = [next(self._ids) for _ in range(3)]
        return EngineView(
            now=1.0,
            stats=SchedulerStats(),
            steps=[StepView(i, 1.0, 2.0, 1, 0, i, [StepEntry(i, 1, 0, 0, True)] * 2) for i in ids],
            requests=[request(10_000, "running"), *(request(i, "finished") for i in ids)],
            num_hidden_requests=0,
            blocks=BlockMap(num_blocks=0, flags=b"", owners=b""),
        )


async def test_the_core_is_asked_for_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "REFRESH_SECONDS", 0.0)
    engine = Engine()
    feed = Feed(engine)  # type: ignore[arg-type]
    for _ in range(3):
        await feed.view(-1)
    assert engine.asked == [(-1, None), (2, None), (5, None)]
    view = await feed.view(7)
    assert [s.step_id for s in view.steps] == [8, 9, 10, 11]
    assert [r.index for r in view.requests] == [10_000, 8, 9, 10, 11]


async def test_many_watchers_are_one_question() -> None:
    engine = Engine()
    feed = Feed(engine)  # type: ignore[arg-type]
    views = await asyncio.gather(*(feed.view(-1) for _ in range(50)))
    assert len(engine.asked) == 1
    assert {len(v.steps) for v in views} == {3}
    await feed.view(-1, block_id=7)
    assert engine.asked[1:] == [(2, 7)]


async def test_blocks_are_not_asked_for_more_often_than_the_core_bears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "BLOCK_SECONDS", 0.05)
    engine = Engine()
    feed = Feed(engine)  # type: ignore[arg-type]
    started = asyncio.get_running_loop().time()
    await asyncio.gather(*(feed.view(-1, block_id=i) for i in range(6)))
    assert asyncio.get_running_loop().time() - started > 4 * 0.05
    assert [block for _, block in engine.asked] == list(range(6))


async def test_a_watcher_that_leaves_keeps_nobody_waiting() -> None:
    engine = Engine()
    feed = Feed(engine)  # type: ignore[arg-type]
    leaving = asyncio.ensure_future(feed.view(-1))
    staying = asyncio.ensure_future(feed.view(-1))
    await asyncio.sleep(0.001)
    leaving.cancel()
    assert (await staying).steps


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(feed_module, "MAX_ENTRIES", 10)
    monkeypatch.setattr(feed_module, "_MAX_ENDED", 4)
    feed = Feed(Engine())  # type: ignore[arg-type]
    for _ in range(6):
        view = await feed.view(-1)
    assert [s.step_id for s in view.steps] == [13, 14, 15, 16, 17]
    assert [r.index for r in view.requests] == [10_000, 14, 15, 16, 17]
    monkeypatch.setattr(feed_module, "MAX_STEPS", 2)
    assert [s.step_id for s in (await feed.view(-1)).steps][-3:] == [18, 19, 20]
