"""Order, and fairness: who does not fit is overtaken, but not for ever."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core import policy
from octavo.core.policy import MAX_OVERTAKES, MAX_PASSED_OVER, ORDERS, PassedOver, RequestQueue
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


def test_prompts_under_way_keep_what_they_were_admitted_by() -> None:
    """Two long prompts that each fit, and do not fit together, run one after the other: neither
    preempts the other half-way."""
    core = busy_core(budget=16)
    for i in range(3):
        core.add(str(i), [i + 1] * 150, max_tokens=1)
    core.run()
    core.check_complete()
    assert core.scheduler.stats().num_preemptions == 0
