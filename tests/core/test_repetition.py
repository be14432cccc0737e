"""An output that repeats itself is noticed at the token that makes it so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.messages import FinishReason
from octavo.contracts.sampling_params import RepetitionDetectionParams
from octavo.core.repetition import RepetitionDetector
from tests.core.fake_worker import FakeCore


def is_stuck(token_ids: list[int], params: RepetitionDetectionParams) -> bool:
    """By the definition."""
    for size in range(max(1, params.min_pattern_size), params.max_pattern_size + 1):
        end = token_ids[-size * params.min_count :]
        if len(end) == size * params.min_count and end == end[:size] * params.min_count:
            return True
    return False


@given(
    st.lists(st.integers(0, 2), max_size=40),
    st.integers(1, 6),
    st.integers(0, 6),
    st.integers(2, 4),
    st.lists(st.integers(1, 5), min_size=40),
)
def test_as_defined(
    token_ids: list[int], largest: int, smallest: int, count: int, sizes: list[int]
) -> None:
    """Token by token, and however many tokens a step brings."""
    params = RepetitionDetectionParams(
        max_pattern_size=largest, min_pattern_size=min(smallest, largest), min_count=count
    )
    expected = next(
        (end for end in range(1, len(token_ids) + 1) if is_stuck(token_ids[:end], params)), None
    )
    detector = RepetitionDetector(params)
    start = 0
    for size in sizes:
        taken = detector.push(token_ids[start : start + size])
        if taken is not None:
            assert start + taken == expected
            return
        start += size
    assert expected is None


def test_a_request_ends_so() -> None:
    """Also when it was preempted in between: what was put out counts once."""
    params = RepetitionDetectionParams(max_pattern_size=1, min_count=6)
    alone = FakeCore()
    pressed = FakeCore(num_blocks=7, budget=16, max_num_seqs=4)
    pressed.add("old", [9] * 20, max_tokens=60, ignore_eos=True)
    for core in (alone, pressed):
        core.worker.model.vocab_size = 2
        core.add("r", [1] * 30, max_tokens=60, ignore_eos=True, repetition_detection=params)
        core.run()
    assert pressed.scheduler.stats().num_preemptions > 0
    answer = alone.answers["r"]
    assert answer.finish_reason is FinishReason.REPETITION
    assert is_stuck(answer.token_ids, params)
    assert not is_stuck(answer.token_ids[:-1], params)
    assert pressed.answers["r"].token_ids == answer.token_ids
