"""Drafts are verified, taken back, cut and forgotten; answers never change."""

from __future__ import annotations

import pytest

from tests.core.fake_worker import FakeCore


def offer(core: FakeCore, request_id: str, count: int, wrong_at: int = 99) -> None:
    request = core.scheduler._requests[request_id]
    drafts = core.expected(request_id)[0][len(request.output_token_ids) :][:count]
    drafts = [(d + (i >= wrong_at)) % 40 for i, d in enumerate(drafts)]
    core.scheduler.update_draft_token_ids({request_id: drafts})


def test_right_drafts_save_steps() -> None:
    core = FakeCore()
    core.add("r", [1] * 20, max_tokens=21, ignore_eos=True)
    core.step()
    for _ in range(4):
        offer(core, "r", 4)
        core.step()
    core.check_complete()
    assert core.worker.num_steps == 5


@pytest.mark.parametrize("wrong_at", range(5))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_wrong_drafts_change_nothing(wrong_at: int, depth: int) -> None:
    core = FakeCore(depth=depth, windows=(None, 20))
    core.add("r", [1] * 20, max_tokens=40, ignore_eos=True)
    core.add("other", [2] * 9, max_tokens=40)
    while core.scheduler.has_unfinished_requests():
        if "r" in core.scheduler._requests:
            offer(core, "r", 4, wrong_at)
        core.step()
    core.check_complete()


def test_they_are_cut_to_the_budget_and_to_what_is_wanted() -> None:
    core = FakeCore(budget=4)
    core.add("a", [1] * 3, max_tokens=9, ignore_eos=True)
    core.step()
    core.add("b", [2] * 1, max_tokens=4, ignore_eos=True)
    core.step()
    offer(core, "a", 5)
    offer(core, "b", 5)
    step = core.schedule()
    assert step.num_scheduled_tokens == {"a": 3, "b": 1}  # b's token is left to it
    core.settle()
    offer(core, "b", 5)
    step = core.schedule()
    assert step.num_scheduled_tokens == {"a": 1, "b": 2}  # of 4 tokens, 2 are there
    core.settle()
    core.run()
    core.check_complete()


def test_they_come_behind_all_known_tokens_or_not_at_all() -> None:
    core = FakeCore(threshold=8)
    core.add("r", [1] * 20, max_tokens=9, ignore_eos=True)
    core.step()
    offer(core, "r", 3)  # 12 tokens of the prompt are left
    step = core.schedule()
    assert (step.num_scheduled_tokens, step.scheduled_drafts) == ({"r": 8}, {})
    core.settle()
    core.run()
    core.check_complete()


def test_there_may_be_more_than_places_in_the_batch() -> None:
    core = FakeCore(max_num_seqs=1)
    core.add("r", [1] * 20, max_tokens=9, ignore_eos=True)
    core.step()
    offer(core, "r", 5)
    assert core.schedule().num_scheduled_tokens == {"r": 6}
    core.settle()
    core.run()
    core.check_complete()


def test_drafts_preempt_nobody() -> None:
    core = FakeCore(num_blocks=3)
    core.add("a", [1] * 14, max_tokens=10, ignore_eos=True)
    core.add("b", [2] * 10, max_tokens=3, ignore_eos=True)
    core.step()
    offer(core, "a", 3)  # they need a block, and none is free
    step = core.schedule()
    assert step.num_scheduled_tokens == {"a": 1, "b": 1}
    assert not step.preempted_request_ids
    core.settle()
    core.run()
    core.check_complete()


def test_a_request_waits_for_the_verdict() -> None:
    core = FakeCore(depth=2)
    core.add("r", [1] * 20, max_tokens=30, ignore_eos=True)
    core.schedule()
    core.settle()
    offer(core, "r", 3)
    assert core.schedule().scheduled_drafts
    assert core.scheduler.schedule().num_scheduled_tokens == {}
    core.settle()
    core.run()
    core.check_complete()
