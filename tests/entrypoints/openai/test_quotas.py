from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.ledger import zeros
from octavo.entrypoints.openai.quotas import Bucket, KeyAccount, KeyLimits, duration


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.step = 0.0  # between two looks

    def __call__(self) -> float:
        now, self.now = self.now, self.now + self.step
        return now


def account(**limits: int) -> tuple[KeyAccount, Clock]:
    clock = Clock()
    return KeyAccount(KeyLimits(**limits), clock), clock


def refusal(attempt: Callable[[], None]) -> APIError:
    with pytest.raises(APIError) as raised:
        attempt()
    assert (raised.value.status, raised.value.code) == (429, "rate_limit_exceeded")
    return raised.value


def test_requests_per_minute() -> None:
    key, clock = account(requests_per_minute=3)
    for _ in range(3):
        key.enter()
    assert refusal(key.enter).headers == {"retry-after": "20"}
    clock.now += 19.9
    assert refusal(key.enter).headers == {"retry-after": "1"}
    clock.now += 0.2
    key.enter()
    refusal(key.enter)
    assert key.rejections == {"key_requests": 3, "key_tokens": 0, "key_concurrent_requests": 0}
    assert (key.num_requests, key.num_concurrent) == (4, 4)


def test_a_limit_that_ends_while_it_is_told() -> None:
    key, clock = account(requests_per_minute=60)
    for _ in range(60):
        key.enter()
    clock.now, clock.step = clock.now + 0.5, 0.6  # there are 0.5 at the first look, then 1.1
    assert refusal(key.enter).headers == {"retry-after": "1"}


def test_a_clock_behind_that_of_another_process_takes_nothing_away() -> None:
    clock = Clock()
    numbers = zeros(2)
    Bucket(60, numbers, clock).take(10)
    clock.now -= 1
    assert Bucket(60, numbers, clock).level == 50


def test_requests_at_a_time() -> None:
    key, _ = account(max_concurrent_requests=2)
    key.enter()
    key.enter()
    assert "2 requests in progress" in refusal(key.enter).message
    key.leave()
    key.enter()


def test_tokens_per_minute() -> None:
    key, clock = account(tokens_per_minute=600)
    key.take_prompt(100)
    key.take_generated(700)  # it was not known before
    # 200 of debt and 1, at 10 a second
    assert refusal(key.check_tokens).headers == {"retry-after": "21"}
    assert refusal(lambda: key.take_prompt(50)).headers == {"retry-after": "25"}
    clock.now += 25
    key.take_prompt(50)
    assert (key.prompt_tokens, key.generation_tokens) == (150, 700)
    key.enter()  # it may need no tokens
    clock.now += 3600
    key.take_prompt(600)
    refusal(key.check_tokens)


def test_a_prompt_that_never_fits_is_not_to_be_sent_again() -> None:
    key, _ = account(tokens_per_minute=600)
    error = refusal(lambda: key.take_prompt(601))
    assert error.headers == {"x-should-retry": "false"}
    assert "601 tokens" in error.message
    key.take_prompt(600)


def test_no_limits_count_all_the_same() -> None:
    key, _ = account()
    key.enter()
    key.take_prompt(10**9)
    key.take_generated(10**9)
    assert key.headers() == []
    assert (key.num_requests, key.prompt_tokens, key.generation_tokens) == (1, 10**9, 10**9)


def test_headers() -> None:
    key, clock = account(requests_per_minute=60, tokens_per_minute=600)
    key.enter()
    key.take_prompt(90)
    assert dict(key.headers()) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1s",
        b"x-ratelimit-limit-tokens": b"600",
        b"x-ratelimit-remaining-tokens": b"510",
        b"x-ratelimit-reset-tokens": b"9s",
    }
    key.take_generated(10_000)
    assert dict(key.headers())[b"x-ratelimit-remaining-tokens"] == b"0"
    clock.now += 10_000
    assert dict(key.headers())[b"x-ratelimit-reset-tokens"] == b"0s"


def test_new_limits_keep_what_was_used() -> None:
    key, _ = account(requests_per_minute=10)
    for _ in range(8):
        key.enter()
    key.set_limits(KeyLimits(requests_per_minute=9, tokens_per_minute=5))
    key.enter()
    refusal(key.enter)
    key.set_limits(KeyLimits())
    key.enter()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.0004, "1ms"), (0.85, "850ms"), (1, "1s"), (59.2, "1m0s"), (63, "1m3s")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 2000)), max_size=30),
)
def test_a_bucket_never_gives_more_than_its_rate(
    per_minute: int, steps: list[tuple[float, int]]
) -> None:
    """In any time: what is taken while it is there is at most a minute's worth and the rate."""
    clock = Clock()
    bucket = Bucket(per_minute, zeros(2), clock)
    start, taken = clock.now, 0
    for pause, amount in steps:
        clock.now += pause
        assert bucket.level <= per_minute
        wait = bucket.seconds_until(amount)
        if wait == 0:
            bucket.take(amount)
            taken += amount
        elif amount <= per_minute:
            clock.now += wait + 1e-6
            assert bucket.level >= amount
    assert taken <= per_minute * (1 + (clock.now - start) / 60) + 1e-3
