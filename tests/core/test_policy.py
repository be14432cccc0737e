"""Order, and fairness: who does not fit is overtaken, but not for ever."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.contracts.features import Admission, HookRequest, SchedulerHook
from octavo.contracts.messages import ServiceClass
from octavo.core import policy
from octavo.core.policy import (
    MAX_OVERTAKES,
    MAX_PASSED_OVER,
    MAX_TOKENS_BESIDE,
    ORDERS,
    PassedOver,
    RequestQueue,
)
from octavo.core.request import Request
from tests.core.fake_worker import FakeCore, make_request


def request(index: int, priority: int = 0, arrival_time: float = 0.0) -> Request:
    wire = make_request(str(index), [1], priority=priority)
    wire.arrival_time = arrival_time
    return Request(wire, arrival_index=index, num_groups=1, max_len=100)


def test_fcfs_is_the_order_of_coming() -> None:
    queue = RequestQueue(ORDERS["fcfs"])
    made = [request(i, priority=-i, arrival_time=-i) for i in range(5)]
    for i in (3, 0, 4, 1, 2):
        queue.add(made[i])
    assert queue.requests == made


def test_priority_then_time_then_the_order_of_coming() -> None:
    queue = RequestQueue(ORDERS["priority"])
    made = [request(0, 1, 5.0), request(1, 0, 9.0), request(2, 0, 2.0), request(3, 0, 2.0)]
    for each in made:
        queue.add(each)
    assert [r.arrival_index for r in queue.requests] == [2, 3, 1, 0]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=20), st.data())
def test_removal_finds_the_very_one(keys: list[tuple[int, int]], data: st.DataObject) -> None:
    queue = RequestQueue(ORDERS["priority"])
    made = [request(i, p, t) for i, (p, t) in enumerate(keys)]
    for each in made:
        queue.add(each)
    for each in data.draw(st.permutations(made)):
        queue.remove(each)
        assert each not in queue.requests
        with pytest.raises(ValueError, match="is not in the queue"):
            queue.remove(each)
    assert queue.requests == []


def test_passed_over_requests_hold_up_others_in_the_end() -> None:
    passed, first = PassedOver(), request(0)
    passed.add(first)
    for _ in range(MAX_OVERTAKES):
        assert not passed.holds_up_others
        passed.count_admission()
    assert passed.holds_up_others
    assert first.num_overtaken == MAX_OVERTAKES
    many = PassedOver()
    for i in range(MAX_PASSED_OVER):
        assert not many.holds_up_others
        many.add(request(i))
    assert many.holds_up_others


# ------------------------------------------------------------------------ fairness


def busy_core(**options: Any) -> FakeCore:
    """15 blocks and places for all."""
    return FakeCore(**{"num_blocks": 16, "max_num_seqs": 64, "prefix_caching": False, **options})


def test_short_requests_pass_one_that_does_not_fit() -> None:
    core = busy_core()
    core.add("running", [1] * 80, max_tokens=60, ignore_eos=True)
    core.step()
    core.add("big", [2] * 200, max_tokens=4, ignore_eos=True)
    core.add("small", [3] * 20, max_tokens=4, ignore_eos=True)
    while core.answers["small"].finish_reason is None:
        core.step()
    assert core.answers["big"].outputs == []
    assert core.answers["running"].finish_reason is None
    big = core.scheduler._requests["big"]
    assert big.num_overtaken == 1
    while big in core.scheduler._waiting.requests:
        core.step()
    assert big.num_overtaken == 0  # should it be preempted, it has passed over nobody yet
    core.run()
    core.check_complete()


@pytest.mark.parametrize("name", ["fcfs", "priority"])
def test_one_that_does_not_fit_does_not_starve(name: str) -> None:
    """Short requests come without end, and enough of them are always there."""
    core = busy_core(policy=name)
    core.add("0", [1] * 20, max_tokens=10, ignore_eos=True)
    core.step()
    core.add("big", [2] * 220, max_tokens=1)
    count, overtaken = 0, 0
    while core.answers["big"].finish_reason is None:
        while len(core.scheduler._waiting.requests) < 5:
            count += 1
            core.add(f"small {count}", [3] * 20, max_tokens=10, ignore_eos=True)
        core.step()
        waiting = [r for r in core.scheduler._waiting.requests if r.request_id == "big"]
        overtaken = max([overtaken, *(r.num_overtaken for r in waiting)])
        assert count < 200
    assert overtaken == MAX_OVERTAKES
    core.run()
    core.check_complete()


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(1, 220), st.integers(1, 30), st.integers(0, 3)),
        min_size=2,
        max_size=60,
    ),
    st.sampled_from([20, 64, 400]),
    st.booleans(),
)
def test_overtaking_is_bounded_and_everybody_ends(
    arrivals: list[tuple[int, int, int]], budget: int, caching: bool
) -> None:
    """At most MAX_OVERTAKES requests (2 here) that came later are admitted before it."""
    core = FakeCore(
        num_blocks=16, max_num_seqs=6, budget=budget, prefix_caching=caching, max_model_len=250
    )
    with mock.patch.object(policy, "MAX_OVERTAKES", 2):
        for i, (num_prompt, max_tokens, steps) in enumerate(arrivals):
            if num_prompt + 1 <= core.scheduler._max_len:
                core.add(str(i), [i % 7 + 1] * num_prompt, max_tokens=max_tokens, ignore_eos=True)
            for _ in range(steps):
                core.step()
        core.run()
    core.check_complete()
    first_seen: dict[str, int] = {}
    for position, step in enumerate(core.steps):
        for new in step.new_requests:
            first_seen.setdefault(new.request_id, position)
    order = sorted(first_seen, key=int)
    for i, request_id in enumerate(order):
        overtakers = [r for r in order[i + 1 :] if first_seen[r] < first_seen[request_id]]
        assert len(overtakers) <= 2


def test_one_that_waits_for_a_hook_or_its_parent_holds_up_nobody() -> None:
    core = busy_core()
    core.add_n("n", 2, [1] * 40, max_tokens=2, ignore_eos=True)
    core.add("other", [2] * 20, max_tokens=2, ignore_eos=True)
    step = core.schedule()
    assert [new.request_id for new in step.new_requests] == ["0_n", "other"]
    core.run()
    core.check_complete()


@pytest.mark.parametrize(("budget", "threshold"), [(16, 0), (64, 16)])
def test_prompts_under_way_keep_what_they_were_admitted_by(budget: int, threshold: int) -> None:
    """Two long prompts that each fit, and do not fit together, run one after the other: neither
    preempts the other half-way. Not those that come in the same step either."""
    core = busy_core(budget=budget, threshold=threshold)
    for i in range(3):
        core.add(str(i), [i + 1] * 150, max_tokens=1)
    core.run()
    core.check_complete()
    assert core.scheduler.stats().num_preemptions == 0


# ------------------------------------------------------------------------ service classes

BATCH = ServiceClass.BATCH


@pytest.mark.parametrize("name", ["fcfs", "priority"])
def test_classes_come_before_the_policy(name: str) -> None:
    queue = RequestQueue(ORDERS[name])
    made = [request(i, priority=i) for i in range(4)]
    made[0].service_class = made[1].service_class = BATCH
    for each in made:
        queue.add(each)
    assert [r.arrival_index for r in queue.requests] == [2, 3, 0, 1]
    assert queue.bounds(ServiceClass.INTERACTIVE) == (0, 2)
    assert queue.bounds(BATCH) == (2, 4)
    queue.remove(made[3])
    queue.remove(made[2])
    assert queue.bounds(ServiceClass.INTERACTIVE) == (0, 0)


def batch_core(num_lines: int = 4, **options: Any) -> FakeCore:
    """Lines of a batch that are decoding: with four, all places are taken."""
    core = FakeCore(**{"max_num_seqs": 4, "num_blocks": 64, "budget": 100, **options})
    for i in range(num_lines):
        core.add(f"line {i}", [i + 1] * 20, max_tokens=60, ignore_eos=True, service_class=BATCH)
    while len(core.scheduler._running.requests) < num_lines:
        core.step()
    return core


@pytest.mark.parametrize("name", ["fcfs", "priority"])
@pytest.mark.parametrize("depth", [1, 2])
def test_an_interactive_request_takes_a_place_of_the_batch_at_once(name: str, depth: int) -> None:
    core = batch_core(policy=name, depth=depth)
    core.add("chat", [9] * 30, max_tokens=5, ignore_eos=True, priority=9)
    step = core.schedule()
    assert [new.request_id for new in step.new_requests] == ["chat"]
    assert step.num_scheduled_tokens["chat"] == 30
    assert step.preempted_request_ids == ["line 3"]
    core.run()
    core.check_complete()
    assert core.scheduler.stats().num_preemptions == 1


def test_an_interactive_request_takes_blocks_of_the_batch() -> None:
    core = batch_core(num_blocks=12, max_model_len=150)  # 11, of which the lines hold 8
    core.add("chat", [9] * 70, max_tokens=5, ignore_eos=True)  # 5
    step = core.schedule()
    assert [new.request_id for new in step.new_requests] == ["chat"]
    assert step.preempted_request_ids == ["line 3"]
    core.run()
    core.check_complete()


def test_the_batch_loses_nothing_where_it_would_not_be_enough() -> None:
    core = batch_core(num_lines=3, num_blocks=12, max_num_seqs=5, max_model_len=150)
    core.add("first", [8] * 60, max_tokens=30, ignore_eos=True)  # 5 of 11, the lines hold 6
    core.step()
    assert core.scheduler.stats().num_preemptions == 0
    core.add("second", [9] * 130, max_tokens=5, ignore_eos=True)  # 9
    core.step()
    assert core.scheduler.stats().num_preemptions == 0
    core.run()
    core.check_complete()


def test_one_that_waits_for_its_parent_takes_nothing() -> None:
    core = batch_core()
    core.add_n("n", 2, [9] * 150, max_tokens=2, ignore_eos=True)
    step = core.schedule()
    assert step.preempted_request_ids == ["line 3"]
    assert not core.schedule().preempted_request_ids
    core.run()
    core.check_complete()


def test_beside_interactive_requests_the_batch_has_few_tokens() -> None:
    core = FakeCore(max_num_seqs=64, num_blocks=300, budget=200, max_model_len=300)
    for i in range(30):
        core.add(f"line {i}", [i] * 100, max_tokens=9, ignore_eos=True, service_class=BATCH)
    assert sum(core.schedule().num_scheduled_tokens.values()) == 200
    core.settle()
    core.add("chat", [9] * 250, max_tokens=30, ignore_eos=True)
    shares = []
    while core.answers["chat"].finish_reason is None:
        step = core.schedule()
        own = step.num_scheduled_tokens["chat"]
        shares.append((own, sum(step.num_scheduled_tokens.values()) - own))
        assert next(iter(step.num_scheduled_tokens)) == "chat"
        core.settle()
    assert shares[0] == (200, 0)  # the prompt comes before all running lines
    assert shares[1] == (50, MAX_TOKENS_BESIDE)
    assert all(own == 1 and 0 < rest <= MAX_TOKENS_BESIDE for own, rest in shares[2:])
    core.run()
    core.check_complete()


def test_an_interactive_request_that_waits_slows_no_batch() -> None:
    """Its grammar is being compiled: the step is the batch's alone."""

    class Compiles(SchedulerHook):
        is_ready = False

        def can_admit(self, request: HookRequest) -> Admission:
            is_held = request.request_id == "chat" and not self.is_ready
            return Admission.WAIT if is_held else Admission.READY

    hook = Compiles()
    core = FakeCore(budget=100, num_blocks=100, max_model_len=300, hooks=[hook])
    core.add("chat", [9] * 10, max_tokens=5, ignore_eos=True)
    core.add("line", [1] * 250, max_tokens=5, ignore_eos=True, service_class=BATCH)
    assert core.schedule().num_scheduled_tokens == {"line": 100}
    core.settle()
    hook.is_ready = True
    assert core.schedule().num_scheduled_tokens == {"chat": 10, "line": MAX_TOKENS_BESIDE}
    core.settle()
    core.run()
    core.check_complete()


@settings(max_examples=30)
@given(st.data())
def test_lines_change_nothing_for_interactive_requests(data: st.DataObject) -> None:
    """Beside lines of a batch every interactive request is admitted, and ends, in the very step
    in which it would without them."""
    num_steps = st.integers(0, 4)
    arrivals = data.draw(
        st.lists(
            st.tuples(st.integers(1, 60), st.integers(1, 20), num_steps, st.booleans()),
            min_size=1,
            max_size=12,
        )
    )
    name = data.draw(st.sampled_from(["fcfs", "priority"]))
    seen: list[dict[str, list[int]]] = []
    for has_lines in (False, True):
        core = FakeCore(
            num_blocks=14, max_num_seqs=4, budget=30, max_model_len=90, prefix_caching=False,
            policy=name,
        )  # fmt: skip
        scheduled: dict[str, list[int]] = {}
        now = 0
        last = (1, 1, 500, True)
        for i, (num_prompt, max_tokens, steps, is_line) in enumerate([*arrivals, last]):
            if has_lines or not is_line:
                core.add(
                    str(i),
                    [i % 7 + 1] * num_prompt,
                    max_tokens=max_tokens,
                    ignore_eos=True,
                    service_class=BATCH if is_line else ServiceClass.INTERACTIVE,
                )
            for _ in range(steps):
                now += 1
                before = len(core.steps)
                core.step()
                for request_id in [r for s in core.steps[before:] for r in s.num_scheduled_tokens]:
                    if core.sent[request_id].service_class is ServiceClass.INTERACTIVE:
                        scheduled.setdefault(request_id, []).append(now)
        core.check_complete()
        seen.append(scheduled)
    assert seen[0] == seen[1]
