"""What requests without a token hear of their progress: the truth, and not too often."""

from __future__ import annotations

import math

import pytest

from octavo.contracts.messages import FinishReason, PromptProgress
from octavo.core.progress import ProgressReports
from octavo.core.request import Request
from tests.core.fake_worker import FakeCore, make_request


def told(core: FakeCore, request_id: str) -> list[tuple[int | None, int]]:
    """What a request heard, all before its first token."""
    outputs = core.answers[request_id].outputs
    reports = [o.progress for o in outputs if o.progress is not None]
    assert [o.progress for o in outputs[: len(reports)]] == reports
    assert not any(o.new_token_ids or o.num_cached_tokens for o in outputs[: len(reports)])
    return [(p.num_ahead, p.num_computed_tokens) for p in reports]


def test_chunks_of_a_prompt() -> None:
    core = FakeCore(budget=32)
    core.add("a", range(1, 101), max_tokens=2, report_progress=True)
    core.run()
    core.check_complete()
    assert told(core, "a") == [(None, 32), (None, 64), (None, 96)]


def test_a_prompt_that_takes_one_step_has_nothing_to_tell() -> None:
    core = FakeCore()
    core.add("a", range(1, 20), max_tokens=2, report_progress=True)
    core.run()
    assert told(core, "a") == []


def test_nobody_else_hears() -> None:
    core = FakeCore(budget=32, max_num_seqs=1)
    core.add("a", range(1, 101), max_tokens=2)
    core.add("b", range(1, 101), max_tokens=2, report_progress=True)
    core.run()
    assert told(core, "a") == []
    assert told(core, "b")


def test_the_place_in_the_queue() -> None:
    core = FakeCore(max_num_seqs=1, budget=32)
    for name in "abc":
        core.add(name, range(1, 41), max_tokens=2, ignore_eos=True)
    core.add("d", range(100, 170), max_tokens=2, report_progress=True)
    core.run()
    core.check_complete()
    assert told(core, "d") == [(2, 0), (1, 0), (0, 0), (None, 32), (None, 64)]


def test_cached_tokens_are_computed_ones() -> None:
    core = FakeCore(budget=32)
    core.add("a", range(1, 101), max_tokens=2)
    core.run()
    core.add("b", [*range(1, 65), *range(200, 260)], max_tokens=2, report_progress=True)
    core.run()
    assert told(core, "b") == [(None, 96)]
    assert core.answers["b"].num_cached_tokens == 64


def test_a_preempted_prompt_waits_again() -> None:
    """Of 12 blocks, the first request has five and soon takes a sixth; the second needs seven."""
    core = FakeCore(num_blocks=13, budget=16, prefix_caching=False)
    core.add("a", range(1, 80), max_tokens=20, ignore_eos=True)
    while not core.answers["a"].token_ids:
        core.step()
    core.add("b", range(300, 400), max_tokens=2, report_progress=True)
    core.run()
    core.check_complete()
    heard = told(core, "b")
    again = heard.index((0, 0))
    assert [ahead for ahead, _ in heard[:again]] == [None] * again
    assert heard[again - 1][1] > 0
    assert heard[-1] == (None, 96)


@pytest.mark.parametrize("depth", [2, 3])
def test_what_is_in_flight_is_not_computed(depth: int) -> None:
    core = FakeCore(budget=16, depth=depth)
    core.add("a", range(1, 101), max_tokens=2, report_progress=True)
    core.run()
    core.check_complete()
    heard = told(core, "a")
    assert [n for _, n in heard] == [16, 32, 48, 64, 80, 96]
    assert {ahead for ahead, _ in heard} == {None}


def test_only_the_first_of_n_completions_tells() -> None:
    core = FakeCore(budget=32)
    core.add("0_r", range(1, 101), max_tokens=2, report_progress=True)
    core.add("1_r", range(1, 101), max_tokens=2, sample_index=1, fork_of="0_r")
    core.run()
    core.check_complete()
    assert len(told(core, "0_r")) == 3
    assert told(core, "1_r") == []


def test_an_aborted_request_hears_no_more() -> None:
    core = FakeCore(budget=32)
    core.add("a", range(1, 101), max_tokens=2, report_progress=True)
    core.step()
    core.finish("a", FinishReason.ABORT)
    core.run()
    assert told(core, "a")[:1] == [(None, 32)]
    assert not core.scheduler._progress._told


def test_long_queues_are_told_sparingly() -> None:
    """Of a thousand that wait, an admission tells some fifty, and each hears some fifty times."""
    requests = [
        Request(
            make_request(str(i), [1, 2], report_progress=True),
            arrival_index=i,
            num_groups=1,
            max_len=99,
        )
        for i in range(1000)
    ]
    reports = ProgressReports()
    for request in requests:
        reports.add(request)
    assert len(reports.news(requests)) == 1000
    heard: dict[str, list[PromptProgress]] = {}
    most = 0
    for first in range(1, 1000):
        requests[first - 1].output_token_ids.append(7)
        news = reports.news(requests[first:])
        most = max(most, len(news))
        for output in news:
            assert output.progress is not None
            heard.setdefault(output.request_id, []).append(output.progress)
    assert most <= 16 + 8 * math.log(1000)
    assert len(heard["999"]) <= 60
    assert [p.num_ahead for p in heard["999"][-3:]] == [2, 1, 0]
