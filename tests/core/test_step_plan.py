from __future__ import annotations

from typing import Any

import pytest

from octavo.core.budget import TokenBudget
from octavo.core.request import Request
from octavo.core.step_plan import StepPlan
from tests.core.fake_worker import EOS, make_request


def plan(num_tokens: int = 100) -> StepPlan:
    return StepPlan(7, TokenBudget(num_tokens, 0))


def request(request_id: str = "r", prompt: int = 10, **options: Any) -> Request:
    wire = make_request(request_id, range(1, prompt + 1), **options)
    return Request(wire, arrival_index=0, num_groups=1, max_len=100)


def test_tokens_count_as_computed_at_once() -> None:
    made, a = plan(), request()
    assert not made.add(a, 4)
    assert (a.num_computed_tokens, a.num_in_flight_tokens, a.num_output_placeholders) == (4, 4, 0)
    assert made.add(a, 6)
    assert (a.num_computed_tokens, a.num_in_flight_tokens, a.num_output_placeholders) == (10, 10, 1)
    assert made.budget.remaining == 90
    assert made.record.scheduled == [(a, 0, 0, 4, 0, False), (a, 0, 4, 6, 0, True)]


def test_drafts_hold_a_placeholder_each_and_are_used_up() -> None:
    made, a = plan(), request()
    a.num_computed_tokens, a.spec_token_ids = 9, [4, 5]
    assert made.add(a, 1, a.spec_token_ids)
    made.close_running()
    assert (a.num_output_placeholders, a.num_drafts_in_flight, a.spec_token_ids) == (3, 2, [])
    assert a.num_computed_tokens == 12
    assert made.step.scheduled_drafts == {"r": [4, 5]}
    assert made.step.num_scheduled_tokens == {"r": 3}
    assert made.step.samples == ["r"]


def test_columns_then_new_requests() -> None:
    made, a, b, c = plan(), request("a"), request("b"), request("c")
    a.num_computed_tokens = 9
    made.add(a, 1)
    made.add(b, 3)
    made.close_running()
    c.num_computed_tokens = 8
    made.add_new(c, 2, ([1, 2],))
    cached = made.step.cached_requests
    assert cached.request_ids == ["a", "b"]
    assert cached.num_computed_tokens == [9, 0]
    assert made.step.num_scheduled_tokens == {"a": 1, "b": 3, "c": 2}
    assert made.step.samples == ["a", "c"]
    assert made.computed_before(b) == 0
    assert made.computed_before(c) == 8
    (new,) = made.step.new_requests
    assert (new.num_computed_tokens, new.block_ids, new.num_prompt_tokens) == (8, ([1, 2],), 10)


def test_a_request_that_comes_back_brings_its_outputs() -> None:
    made, a = plan(), request(sample_index=2)
    a.token_ids += [50, 51]
    made.close_running()
    made.add_new(a, 12, ([1],))
    (new,) = made.step.new_requests
    assert new.token_ids == [*range(1, 11), 50, 51]
    assert (new.num_prompt_tokens, new.sample_index) == (10, 2)
    a.token_ids.append(52)
    assert len(new.token_ids) == 12  # its own list


def test_bad_words_go_to_the_workers() -> None:
    made = plan()
    made.close_running()
    made.add_new(request(bad_words_token_ids=[[4], [5, 6]]), 10, ([1],))
    assert made.step.new_requests[0].bad_words_token_ids == [[4], [5, 6]]


@pytest.mark.parametrize(
    ("options", "stop_ids"),
    [
        ({"min_tokens": 2}, [EOS]),
        ({"min_tokens": 2, "stop_token_ids": [9, 3]}, [EOS, 3, 9]),
        ({"min_tokens": 2, "stop_token_ids": [9], "ignore_eos": True}, [9]),
        ({"stop_token_ids": [9]}, []),
    ],
)
def test_ids_to_mask_before_min_tokens(options: dict[str, Any], stop_ids: list[int]) -> None:
    made = plan()
    made.close_running()
    made.add_new(request(**options), 10, ([1],))
    assert made.step.new_requests[0].stop_ids == stop_ids
