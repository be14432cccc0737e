"""What one API key may use, and has used: requests and tokens per minute, requests at a time; over
all front ends of the server together.

A limit per minute is a bucket: it holds at most a minute's worth, and fills evenly. Prompt tokens
are taken when a request is admitted, generated ones when a sequence ends, which may leave a debt;
until it is paid the key's requests for tokens wait.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.ledger import Numbers, Usage

REJECTIONS = ("key_requests", "key_tokens", "key_concurrent_requests")
"""Why a key's request is refused with 429."""

Clock = Callable[[], float]


class KeyLimits(msgspec.Struct, kw_only=True, frozen=True):
    """A key's limits; None is no limit.

    Attributes:
        requests_per_minute: HTTP requests, whatever the route.
        tokens_per_minute: prompt and generated tokens.
        max_concurrent_requests: HTTP requests that are being answered.
        priority: the best priority (the lowest number) that a request may have, and the one that it
            has without the field `priority`; needs `--scheduling-policy priority`.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent_requests: int | None = None
    priority: int | None = None


class Bucket:
    """So many units per minute. `level` is what may be taken now; below 0 it is a debt.

    Args:
        numbers: what is missing in it, and since when; (0, 0): it is full.
    """

    def __init__(self, per_minute: int, numbers: Numbers, clock: Clock) -> None:
        self.per_minute = per_minute
        self._numbers = numbers
        self._clock = clock

    @property
    def level(self) -> float:
        """What is in it."""
        missing, then = self._numbers
        now = self._clock()
        missing = max(0.0, missing - max(0.0, now - then) * self.per_minute / 60)
        self._numbers[0], self._numbers[1] = missing, now
        return self.per_minute - missing

    def take(self, amount: int) -> None:
        """Take out so much, even if it is not there."""
        self._numbers[0] = self.per_minute - self.level + amount

    def seconds_until(self, amount: float) -> float:
        """When that much will be in it."""
        return max(0.0, amount - self.level) * 60 / self.per_minute


class KeyAccount:
    """What a key has used.

    Args:
        usage: of its limits, which other front ends may share; all that is counted besides is this
            one's.

    Attributes:
        num_requests, prompt_tokens, generation_tokens: totals since the start, for /metrics.
        rejections: refused requests by reason (`REJECTIONS`).
    """

    def __init__(
        self, limits: KeyLimits, clock: Clock = time.monotonic, *, usage: Usage | None = None
    ) -> None:
        self._clock = clock
        self._usage = usage or Usage()
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.set_limits(limits)
        self.num_requests = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.rejections = dict.fromkeys(REJECTIONS, 0)

    def set_limits(self, limits: KeyLimits) -> None:
        """From now on these; what was used stays used."""
        self.limits = limits
        self._requests = self._bucket(limits.requests_per_minute, self._usage.requests)
        self._tokens = self._bucket(limits.tokens_per_minute, self._usage.tokens)

    def _bucket(self, per_minute: int | None, numbers: Numbers) -> Bucket | None:
        return None if per_minute is None else Bucket(per_minute, numbers, self._clock)

    @property
    def num_concurrent(self) -> int:
        """Requests that are being answered, by any front end."""
        return int(sum(self._usage.answering))

    @property
    def num_in_background(self) -> int:
        """Requests that go on behind their answers, in any front end."""
        return int(sum(self._usage.background))

    def enter(self) -> None:
        """A request begins; `leave` ends it. Raises APIError 429: it has not begun."""
        with self._usage.lock:
            self._enter()
        self.num_requests += 1

    def _enter(self) -> None:
        most = self.limits.max_concurrent_requests
        if most is not None and self.num_concurrent >= most:
            raise self._refused(
                "key_concurrent_requests",
                f"this API key has {self.num_concurrent} requests in progress, of at most {most}; "
                "wait for one of them",
                1.0,
            )
        if self._requests is not None and self._requests.level < 1:
            raise self._refused(
                "key_requests",
                f"this API key may send {self._requests.per_minute} requests per minute",
                self._requests.seconds_until(1),
            )
        if self._requests is not None:
            self._requests.take(1)
        self._usage.answering[self._usage.front_end] += 1

    def leave(self) -> None:
        """A request was answered."""
        self._usage.answering[self._usage.front_end] -= 1

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """While a request goes on behind its answer. As many may as at a time, besides those, so
        that they can be asked for. Raises APIError 429: it may not."""
        usage, most = self._usage, self.limits.max_concurrent_requests
        with usage.lock:
            if most is not None and self.num_in_background >= most:
                raise self._refused(
                    "key_concurrent_requests",
                    f"this API key has {self.num_in_background} requests in the background, of at "
                    f"most {most}; wait for one of them",
                    1.0,
                )
            usage.background[usage.front_end] += 1
        try:
            yield
        finally:
            usage.background[usage.front_end] -= 1

    def check_tokens(self) -> None:
        """A request is to use tokens. Raises APIError 429: none are left."""
        with self._usage.lock:
            if self._tokens is not None and self._tokens.level < 1:
                raise self._too_many_tokens(1)

    def take_prompt(self, num_tokens: int) -> None:
        """A request's prompts. Raises APIError 429: nothing was taken."""
        if self._tokens is not None and num_tokens > self._tokens.per_minute:
            raise self._refused(
                "key_tokens",
                f"the prompt has {num_tokens} tokens, but this API key may use only "
                f"{self._tokens.per_minute} per minute; send a shorter one",
                None,
            )
        with self._usage.lock:
            if self._tokens is not None:
                if num_tokens > self._tokens.level:
                    raise self._too_many_tokens(num_tokens)
                self._tokens.take(num_tokens)
        self.prompt_tokens += num_tokens

    def take_generated(self, num_tokens: int) -> None:
        """A sequence ended that has generated so much."""
        with self._usage.lock:
            if self._tokens is not None:
                self._tokens.take(num_tokens)
        self.generation_tokens += num_tokens

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What is left, as OpenAI's API tells it: `x-ratelimit-…`."""
        headers = []
        for kind, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                with self._usage.lock:
                    left = max(0, int(bucket.level))
                    reset = duration(bucket.seconds_until(bucket.per_minute))
                for what, value in (
                    ("limit", str(bucket.per_minute)),
                    ("remaining", str(left)),
                    ("reset", reset),
                ):
                    headers.append((f"x-ratelimit-{what}-{kind}".encode(), value.encode()))
        return headers

    def _too_many_tokens(self, wanted: int) -> APIError:
        assert self._tokens is not None
        return self._refused(
            "key_tokens",
            f"this API key may use {self._tokens.per_minute} tokens per minute; "
            f"{max(0, int(self._tokens.level))} are left",
            self._tokens.seconds_until(wanted),
        )

    def _refused(self, reason: str, message: str, seconds: float | None) -> APIError:
        """Refuse for so many seconds; None: for ever, which OpenAI's clients are told, too."""
        self.rejections[reason] += 1
        headers = {"x-should-retry": "false"}
        if seconds is not None:
            retry_after = max(1, math.ceil(seconds))
            message = f"{message}; try again in {retry_after} s"
            headers = {"retry-after": str(retry_after)}
        return APIError(429, message, code="rate_limit_exceeded", headers=headers)


def duration(seconds: float) -> str:
    """As OpenAI writes it: 0s, 850ms, 12s, 1m3s."""
    if 0 < seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
