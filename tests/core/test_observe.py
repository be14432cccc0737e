"""What a watcher sees is what there is, and watching changes nothing."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from octavo.contracts.engine_view import BlockMap, EngineView, RequestView, WaitReason
from octavo.contracts.features import Admission, SchedulerHook
from octavo.core import observe
from octavo.core.request import Request
from tests.core.fake_worker import FakeCore

PROMPT = list(range(1, 41))


def busy(**options: int) -> FakeCore:
    """Four requests, two of which share a prefix, on a small pool with a draft now and then."""
    core = FakeCore(num_blocks=40, budget=32, **options)
    core.scheduler.observe()
    for i, prompt in enumerate((PROMPT, [*PROMPT, 7], [9] * 50, [5, 6])):
        core.add(str(i), prompt, max_tokens=30, ignore_eos=True)
    for i in range(20):
        if i % 3 == 0:
            core.scheduler.update_draft_token_ids({"3": [1, 2, 3]})
        core.step()
    return core


def by_id(view: EngineView) -> dict[str, RequestView]:
    return {request.request_id: request for request in view.requests}


def arrays(blocks: BlockMap) -> tuple[np.ndarray, np.ndarray]:
    return np.frombuffer(blocks.flags, np.uint8), np.frombuffer(blocks.owners, "<i4")


@pytest.mark.parametrize("depth", [1, 3])
def test_the_timeline_has_every_token(depth: int) -> None:
    core = busy(depth=depth)
    view = core.scheduler.observe()
    settled = core.steps[: len(core.steps) - len(core.in_flight)]
    assert [s.step_id for s in view.steps] == [s.step_id for s in settled]
    kinds = np.zeros(3, int)
    for step, planned in zip(view.steps, settled):
        counts = [(e.num_prefill, e.num_decode, e.num_drafts) for e in step.entries]
        assert [sum(c) for c in counts] == list(planned.num_scheduled_tokens.values())
        assert sum(map(sum, counts)) == planned.total_num_scheduled_tokens
        assert sum(c[2] for c in counts) == sum(map(len, planned.scheduled_drafts.values()))
        assert sum(e.has_output for e in step.entries) == len(planned.samples)
        assert view.now >= step.done_at >= step.planned_at > 0
        kinds += np.sum(counts, 0)
    assert kinds[0]
    assert kinds[1]
    assert bool(kinds[2]) is (depth == 1)  # drafts need a request of which nothing is in flight
    assert view.steps[-1].generation_tokens == view.stats.generation_tokens
    prompts = sum(len(r.prompt_token_ids) for r in core.sent.values())
    cached = sum(r.num_cached_tokens for r in view.requests)
    assert cached == 32
    assert kinds[0] == prompts - cached


def test_the_block_map_is_the_pool() -> None:
    core = busy(windows=(None, 20))
    core.finish("2")
    view = core.scheduler.observe()
    flags, owners = arrays(view.blocks)
    pool = core.scheduler._kv.pool
    assert view.blocks.num_blocks == len(flags) == len(owners) == len(pool.blocks)
    assert list(flags & 127) == [b.ref_cnt for b in pool.blocks]
    assert list(flags >= 128) == [b.block_hash is not None for b in pool.blocks]
    assert np.count_nonzero((flags & 127) > 1), "nothing is shared"
    assert np.count_nonzero(flags == 128) == pool.num_cached_blocks > 0
    index = {r.request_id: r.index for r in view.requests}
    for request in core.scheduler._running.requests:
        held = {b.block_id for t in request.block_tables for b in t if not b.is_null}
        assert by_id(view)[request.request_id].num_blocks == len(held)
        assert set(np.flatnonzero(owners == index[request.request_id])) <= held
    assert list(owners >= 0) == [b.ref_cnt > 0 for b in pool.blocks]


def test_a_block_and_who_holds_it() -> None:
    core = busy()
    shared = core.scheduler._running.requests[1].block_tables[0][1]
    block = core.scheduler.observe(block_id=shared.block_id).block
    assert block is not None
    assert block.holders == [(0, 1), (1, 1)]
    assert block.ref_cnt == 2
    assert shared.block_hash is not None
    assert block.hash_prefix == shared.block_hash[:4].hex()
    for block_id in (-1, 40, 10**9):
        assert core.scheduler.observe(block_id=block_id).block is None
    null = core.scheduler.observe(block_id=0).block
    assert null is not None
    assert (null.holders, null.hash_prefix) == ([], None)


def test_steps_are_told_once_to_those_who_say_what_they_know() -> None:
    core = busy()
    first = core.scheduler.observe()
    last = first.steps[-1].step_id
    assert not core.scheduler.observe(last).steps
    core.step()
    assert [s.step_id for s in core.scheduler.observe(last).steps] == [last + 1]
    assert len(core.scheduler.observe().steps) == len(first.steps) + 1


def test_ended_requests_that_steps_name_are_told() -> None:
    core = busy()
    core.run()
    view = core.scheduler.observe()
    assert {r.index for r in view.requests} >= {e.index for s in view.steps for e in s.entries}
    assert {r.status for r in view.requests} == {"finished"}
    assert not core.scheduler.observe(view.steps[-1].step_id).requests


def test_ended_requests_are_not_kept() -> None:
    """A prompt may be long, and steps of short answers name many."""
    core = busy()
    core.add("aborted", [4] * 20, max_tokens=9, ignore_eos=True)
    core.step()
    core.finish("aborted")
    core.run()
    assert "aborted" in by_id(core.scheduler.observe())
    core._writers.clear()  # the fake's own
    gc.collect()
    kept = [r for r in gc.get_objects() if type(r) is Request]
    assert not [r for r in kept if any(r.engine_request is e for e in core.sent.values())]


def test_nothing_is_noted_when_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    core = FakeCore()
    core.add("a", PROMPT, max_tokens=50, ignore_eos=True)
    core.step()
    assert core.scheduler._observer._log is None
    assert not core.scheduler.observe().steps
    core.step()
    assert core.scheduler._observer._log is not None
    now = observe.time.monotonic()
    monkeypatch.setattr(observe.time, "monotonic", lambda: now + 2 * observe.WATCH_SECONDS)
    core.step()
    assert core.scheduler._observer._log is None


def test_a_step_planned_before_anyone_looked_has_no_beginning() -> None:
    core = FakeCore(depth=2)
    core.add("a", PROMPT, max_tokens=50, ignore_eos=True)
    core.schedule()
    core.scheduler.observe()
    core.settle()
    assert not core.scheduler.observe().steps


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "MAX_STEPS", 6)
    core = busy()
    assert len(core.scheduler.observe().steps) == 6
    monkeypatch.setattr(observe, "MAX_ENTRIES", 8)
    core.step()
    steps = core.scheduler.observe().steps
    assert sum(len(s.entries) for s in steps) <= 8
    assert steps
    log = core.scheduler._observer._log
    assert log is not None
    for i in range(30):
        core.add(f"short{i}", [1], max_tokens=2)
        core.step()
    assert 0 < len(log._ended) < 30
    monkeypatch.setattr(observe, "MAX_SHOWN_BLOCKS", 10)
    blocks = core.scheduler.observe().blocks
    assert (blocks.num_blocks, len(blocks.flags), len(blocks.owners)) == (40, 10, 40)
    for i in range(5):
        core.add(f"more{i}", [1], max_tokens=2)
    monkeypatch.setattr(observe, "MAX_SHOWN_WAITING", 2)
    view = core.scheduler.observe()
    assert view.num_hidden_requests == 3
    assert sum(r.status == "waiting" for r in view.requests) == 2


class TestReasons:
    def reasons(self, core: FakeCore) -> dict[str, WaitReason | None]:
        return {r.request_id: r.reason for r in core.scheduler.observe().requests}

    def test_running_requests_have_none(self) -> None:
        assert set(self.reasons(busy()).values()) == {None}

    def test_places_and_next(self) -> None:
        core = FakeCore(max_num_seqs=1)
        core.add("a", [1, 2], max_tokens=9, ignore_eos=True)
        assert self.reasons(core) == {"a": WaitReason.NEXT}
        core.add("b", [1, 2])
        core.step()
        assert self.reasons(core) == {"a": None, "b": WaitReason.PLACES}

    def test_tokens(self) -> None:
        core = FakeCore(budget=16)
        core.add("a", PROMPT)
        core.add("b", PROMPT)
        core.step()
        assert self.reasons(core)["b"] is WaitReason.TOKENS

    def test_blocks_and_order(self) -> None:
        core = FakeCore(num_blocks=8, max_model_len=128)
        core.add("a", [3] * 60, max_tokens=30, ignore_eos=True)
        core.step()
        for i in range(observe.MAX_PASSED_OVER):
            core.add(f"long{i}", [i + 4] * 70)
        core.add("short", [2])
        core.step()
        reasons = self.reasons(core)
        assert {reasons[f"long{i}"] for i in range(observe.MAX_PASSED_OVER)} == {WaitReason.BLOCKS}
        assert reasons["short"] is WaitReason.ORDER

    def test_parents_and_features(self) -> None:
        class Holds(SchedulerHook):
            def can_admit(self, request: object) -> Admission:
                is_held = isinstance(request, Request) and request.request_id == "held"
                return Admission.WAIT if is_held else Admission.READY

        core = FakeCore(budget=16, hooks=[Holds()])
        core.add("held", [1, 2])
        core.add_n("n", 2, PROMPT)
        core.step()
        reasons = self.reasons(core)
        assert reasons == {
            "0_n": None,
            "held": WaitReason.FEATURE,
            "1_n": WaitReason.PARENT,
        }

    def test_a_preempted_request_says_so(self) -> None:
        core = FakeCore(num_blocks=9, max_model_len=128)
        for name in "abc":
            core.add(name, [ord(name)] * 30, max_tokens=60, ignore_eos=True)
        while not core.scheduler.stats().num_preemptions:
            core.step()
        [preempted] = [r for r in core.scheduler.observe().requests if r.status == "preempted"]
        assert preempted.num_preemptions == 1
        assert preempted.reason is WaitReason.BLOCKS


def test_watching_changes_nothing() -> None:
    def steps(is_watched: bool) -> list[dict[str, int]]:
        core = FakeCore(num_blocks=9, budget=24, max_num_seqs=3, max_model_len=128)
        core.watch = lambda step: core.scheduler.observe() if is_watched else None  # type: ignore
        for name in "abcde":
            core.add(name, [ord(name) % 3 + 1] * 30, max_tokens=40)
        core.add_n("n", 3, [8] * 20, max_tokens=5)
        core.run()
        return [step.num_scheduled_tokens for step in core.steps]

    assert steps(True) == steps(False)
