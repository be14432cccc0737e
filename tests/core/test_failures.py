"""A request can only fail itself, and what it computed last is trusted by nobody."""

from __future__ import annotations

import pytest

from octavo.contracts.messages import FinishReason
from octavo.contracts.step import RunnerOutput, SchedulerOutput
from tests.core.fake_worker import FakeCore


def test_one_request_fails_alone() -> None:
    core = FakeCore(fails=lambda step_id, request_id: request_id == "bad" and step_id >= 2)
    core.add("good", [1] * 20, max_tokens=9, ignore_eos=True)
    core.add("bad", [2] * 20, max_tokens=9, ignore_eos=True)
    core.run()
    bad = core.answers["bad"]
    assert (bad.finish_reason, bad.error) == (FinishReason.ERROR, "failed in step 2")
    assert bad.token_ids == core.expected("bad")[0][:2]
    assert core.answers["good"].token_ids == core.expected("good")[0]


def test_what_a_failed_step_computed_is_not_found_again() -> None:
    core = FakeCore(budget=32, fails=lambda step_id, _: step_id == 1)
    core.add("bad", [1] * 60, max_tokens=3)
    core.run()
    assert core.answers["bad"].finish_reason is FinishReason.ERROR
    core.add("next", [1] * 60, max_tokens=3)
    core.run()
    assert core.answers["next"].num_cached_tokens == 32  # what step 0 computed is sound
    assert core.answers["next"].token_ids == core.expected("next")[0]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_sharers_of_a_failed_step_start_again(depth: int) -> None:
    core = FakeCore(depth=depth, budget=256, fails=lambda step_id, request_id: request_id == "bad")
    core.add("bad", [1] * 40, max_tokens=3)
    core.add("shares", [1] * 60, max_tokens=30, ignore_eos=True)  # in the same step
    core.add("shares more", [1] * 64, max_tokens=30, ignore_eos=True)
    core.add("apart", [2] * 40, max_tokens=30, ignore_eos=True)
    core.run()
    assert core.answers["bad"].finish_reason is FinishReason.ERROR
    for name in ("shares", "shares more", "apart"):
        assert core.answers[name].token_ids == core.expected(name)[0]


@pytest.mark.parametrize("depth", [2, 3])
def test_the_owner_may_be_gone_before_its_failure_is_known(depth: int) -> None:
    core = FakeCore(depth=depth, budget=256, fails=lambda step_id, request_id: request_id == "bad")
    core.add("bad", [1] * 40, max_tokens=3)
    core.schedule()
    core.finish("bad")
    core.add("shares", [1] * 60, max_tokens=30, ignore_eos=True)
    core.run()
    assert core.answers["shares"].token_ids == core.expected("shares")[0]


def test_what_was_hashed_when_its_owner_went_is_not_found_either() -> None:
    """The owner is aborted when all tokens of a block are known, and the step that computes
    the last of them, which will fail, is in flight."""
    core = FakeCore(depth=2, fails=lambda step_id, _: step_id == 2)
    core.add("bad", [1] * 30, max_tokens=30, ignore_eos=True)
    for _ in range(2):
        core.schedule()
    core.settle()
    core.schedule()
    core.settle()
    request = core.scheduler._requests["bad"]
    assert request.num_tokens == request.num_computed_tokens == 32
    core.finish("bad")
    assert core.scheduler.stats().num_cached_blocks == 2
    core.settle()
    core.add("next", [*request.token_ids, 5], max_tokens=5)
    core.run()
    assert core.answers["next"].num_cached_tokens == 16
    assert core.answers["next"].token_ids == core.expected("next")[0]


@pytest.mark.parametrize("depth", [1, 3])
def test_who_contradicts_itself_restarts_nobody(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had no token to choose from: what it computed is as good as any."""
    core = FakeCore(depth=depth, budget=256)

    def without_a_token(step: SchedulerOutput) -> RunnerOutput:
        output = execute(step)
        if "bad" in step.samples:
            output.sampled_token_ids[output.request_ids.index("bad")] = []
            output.errors["bad"], output.error_params["bad"] = "nothing left", "bad_words"
        return output

    execute = core.worker.execute
    monkeypatch.setattr(core.worker, "execute", without_a_token)
    core.add("bad", [1] * 40, max_tokens=3)
    core.add("shares", [1] * 60, max_tokens=30, ignore_eos=True)
    core.run()
    assert core.answers["bad"].outputs[-1].error_param == "bad_words"
    assert core.answers["shares"].token_ids == core.expected("shares")[0]
    core.add("next", [1] * 40, max_tokens=3)
    core.run()
    assert core.answers["next"].num_cached_tokens == 32
    assert core.scheduler.stats().num_preemptions == 0


def test_a_repeated_error_restarts_nobody_again() -> None:
    core = FakeCore(depth=3, budget=256, fails=lambda _, request_id: request_id == "bad")
    core.add("warm", [1] * 40, max_tokens=1)
    core.run()
    core.add("bad", [1] * 60, max_tokens=9)
    core.add("shares", [1] * 60, max_tokens=20, ignore_eos=True)
    core.run()
    assert core.answers["shares"].token_ids == core.expected("shares")[0]
    assert core.scheduler.stats().num_preemptions == 1


@pytest.mark.parametrize("caching", [True, False])
def test_children_of_a_parent_that_went_before_its_failure_was_known(caching: bool) -> None:
    core = FakeCore(depth=2, prefix_caching=caching, fails=lambda _, name: name == "0_n")
    core.add_n("n", 3, [1] * 40, max_tokens=9, ignore_eos=True)
    core.schedule()
    core.finish("0_n")
    core.settle()
    core.run()
    for child in ("1_n", "2_n"):
        assert core.answers[child].token_ids == core.expected(child)[0]


def test_children_of_a_failed_parent() -> None:
    core = FakeCore(depth=2, fails=lambda step_id, request_id: request_id == "0_n")
    core.add_n("n", 3, [1] * 40, max_tokens=9, ignore_eos=True)
    core.run()
    assert core.answers["0_n"].finish_reason is FinishReason.ERROR
    for child in ("1_n", "2_n"):
        assert core.answers[child].token_ids == core.expected(child)[0]


def test_a_failure_of_the_whole_step() -> None:
    core = FakeCore(fails=lambda step_id, _: step_id == 1)
    for i in range(3):
        core.add(str(i), [1] * 20, max_tokens=9, ignore_eos=True)
    core.run()
    assert {a.finish_reason for a in core.answers.values()} == {FinishReason.ERROR}
    core.add("next", [1] * 20, max_tokens=9)
    core.run()
    assert core.answers["next"].token_ids == core.expected("next")[0]


def test_a_missing_token_is_an_error_of_that_request() -> None:
    core = FakeCore()
    core.add("a", [1] * 5, max_tokens=9)
    core.add("b", [2] * 5, max_tokens=9, ignore_eos=True)
    step = core.scheduler.schedule()
    output = RunnerOutput(step_id=step.step_id, request_ids=["b", "a"], sampled_token_ids=[[7], []])
    found = {o.request_id: o for o in core.scheduler.update_from_output(step, output)}
    assert found["a"].error == "no token was sampled"
    assert found["b"].new_token_ids == [7]
    core.scheduler.check_integrity()
