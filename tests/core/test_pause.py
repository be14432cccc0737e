from __future__ import annotations

from octavo.contracts.engine_view import WaitReason
from octavo.contracts.messages import FinishReason
from octavo.core.pause import PauseState
from tests.core.fake_worker import FakeCore


def test_paused_for_new_requests() -> None:
    """Those that have begun end, those that wait stay, and say why."""
    core = FakeCore()
    core.add("begun", [1] * 20, max_tokens=3)
    step = core.scheduler.schedule()
    assert "begun" in step.num_scheduled_tokens
    core.scheduler.pause_state = PauseState.PAUSED_NEW
    core.add("late", [2] * 20, max_tokens=3)
    assert core.scheduler.has_begun_requests()
    assert core.scheduler.has_work()
    assert "late" not in core.scheduler.schedule().num_scheduled_tokens
    view = core.scheduler.observe()
    assert [r.reason for r in view.requests if r.reason is not None] == [WaitReason.PAUSED]
    core.scheduler.finish_requests(["begun"], FinishReason.ABORT)
    assert not core.scheduler.has_begun_requests()
    core.scheduler.schedule()  # tells the workers
    assert not core.scheduler.has_work()
    core.scheduler.pause_state = PauseState.UNPAUSED
    assert "late" in core.scheduler.schedule().num_scheduled_tokens
    core.scheduler.check_integrity()


def test_what_was_preempted_has_begun() -> None:
    core = FakeCore(num_blocks=5)  # one to spare for two requests that need it at the same time
    for name in ("first", "second"):
        core.add(name, [ord(name[0])] * 20, max_tokens=20, ignore_eos=True)
    while not core.scheduler.stats().num_preemptions:
        core.step()
    core.scheduler.pause_state = PauseState.PAUSED_NEW
    core.run()
    core.check_complete()


def test_paused_for_all() -> None:
    core = FakeCore()
    core.add("begun", [1] * 20, max_tokens=3)
    core.scheduler.schedule()
    core.scheduler.pause_state = PauseState.PAUSED_ALL
    assert not core.scheduler.has_work()
    assert not core.scheduler.schedule().num_scheduled_tokens
    assert core.scheduler.has_begun_requests()
    assert core.scheduler.stats().num_used_blocks > 0
    core.scheduler.check_integrity()
