from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.entrypoints.openai.admission import Admission, Ticket
from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.record import RequestRecord

RECORD = RequestRecord(request_id="r")


def test_a_request_is_counted_until_it_starts() -> None:
    admission = Admission(max_num_queued_reqs=3, max_num_queued_tokens=100)
    with admission.enter(RECORD) as ticket:
        assert (admission.num_reqs, admission.num_tokens) == (1, 0)
        ticket.admit({"0_a": 90, "1_a": 0})
        assert (admission.num_reqs, admission.num_tokens) == (2, 90)
        with admission.enter(RECORD) as other, pytest.raises(APIError) as caught:
            other.admit({"b": 11})
        assert caught.value.status == 503
        admission.started("0_a")
        assert (admission.num_reqs, admission.num_tokens) == (1, 0)
        admission.started("0_a")
        admission.started("unknown")
    assert (admission.num_reqs, admission.num_tokens) == (0, 0)
    assert admission.rejections == {
        "queued_reqs": 0,
        "queued_tokens": 1,
        "body_bytes": 0,
        "draining": 0,
    }


def test_what_is_not_queued_is_always_let_in() -> None:
    admission = Admission(max_num_queued_reqs=1, max_body_bytes=10)
    with admission.enter(RECORD):
        admission.draining = True
        with admission.enter(RECORD, queued=False) as ticket:
            assert admission.num_reqs == 1
            with pytest.raises(APIError, match="bytes of bodies"):
                ticket.add_body(11)
    assert admission.num_reqs == admission.num_body_bytes == 0


def test_limits_of_requests() -> None:
    admission = Admission(max_num_queued_reqs=1)
    with admission.enter(RECORD):
        with pytest.raises(APIError, match="queue is full: 1 requests wait of at most 1"):
            admission.enter(RECORD)
        assert admission.rejections["queued_reqs"] == 1
    with admission.enter(RECORD) as ticket:
        ticket.admit({f"{i}_a": 1 for i in range(99)})  # alone in the queue


def test_a_ticket_that_is_handed_over() -> None:
    admission = Admission(max_num_queued_reqs=1, max_body_bytes=10)
    with admission.enter(RECORD) as first:
        first.add_body(4)
        ticket = first.hand_over()
        assert admission.num_reqs == 1
    assert (admission.num_reqs, admission.num_body_bytes) == (1, 0)
    with ticket:
        ticket.admit({"a": 7})
        admission.started("a")
        assert (admission.num_reqs, admission.num_tokens) == (0, 0)
    with admission.enter(RECORD) as first:
        first.admit({"b": 7})
        ticket = first.hand_over()
    assert (admission.num_reqs, admission.num_tokens) == (1, 7)
    with ticket:
        pass
    assert (admission.num_reqs, admission.num_tokens) == (0, 0)


def test_draining() -> None:
    admission = Admission()
    admission.draining = True
    with pytest.raises(APIError, match="stopping"):
        admission.enter(RECORD)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 40))))
def test_the_account_is_always_right(actions: list[tuple[int, int, int]]) -> None:
    """Against a plain count: requests 0…5 enter, are admitted, start, end, in any order."""
    admission = Admission(max_num_queued_reqs=6, max_num_queued_tokens=100)
    tickets: dict[int, Ticket] = {}
    waiting: dict[int, dict[str, int]] = {}
    for number, action, size in actions:
        try:
            if action == 0 and number not in tickets:
                tickets[number] = admission.enter(RECORD)
            elif action == 1 and number in tickets and number not in waiting:
                parts = {f"{i}_{number}": size if i == 0 else 0 for i in range(1 + size % 3)}
                tickets[number].admit(parts)
                waiting[number] = dict(parts)
            elif action == 2 and waiting.get(number):
                engine_id, _ = waiting[number].popitem()
                admission.started(engine_id)
            elif action == 3 and number in tickets:
                tickets.pop(number).__exit__(None, None, None)
                waiting.pop(number, None)
        except APIError:
            if action == 1:
                waiting[number] = {}
        unread = len(tickets) - len(waiting)
        assert admission.num_reqs == unread + sum(map(len, waiting.values()))
        assert admission.num_tokens == sum(sum(parts.values()) for parts in waiting.values())


def test_bytes_of_bodies() -> None:
    admission = Admission(max_body_bytes=100)
    with admission.enter(RECORD) as one, admission.enter(RECORD) as two:
        one.add_body(60)
        two.add_body(40)
        with pytest.raises(APIError) as raised:
            two.add_body(1)
        assert (raised.value.status, raised.value.code) == (503, "queue_full")
        assert admission.rejections["body_bytes"] == 1
        one.body_done()
        two.add_body(60)
    assert admission.num_body_bytes == 0
