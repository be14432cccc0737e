"""`max_time_ms` and `ttft_deadline_ms`: which requests are late."""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo.contracts.sampling_params import SamplingParams


@dataclass(slots=True)
class _Deadline:
    """Times of `time.monotonic`; infinite where there is none."""

    end: float
    first_token: float

    @property
    def next(self) -> float:
        return min(self.end, self.first_token)


class Deadlines:
    """The deadlines of the requests that have one. Looking at the clock costs one comparison."""

    def __init__(self) -> None:
        self._deadlines: dict[str, _Deadline] = {}
        self._next = math.inf  # no request is late before this

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._deadlines)

    def add(self, request_id: str, params: SamplingParams, arrival: float) -> None:
        """A request arrived."""
        if params.max_time_ms is None and params.ttft_deadline_ms is None:
            return
        deadline = _Deadline(
            _after(arrival, params.max_time_ms), _after(arrival, params.ttft_deadline_ms)
        )
        self._deadlines[request_id] = deadline
        self._next = min(self._next, deadline.next)

    def has_begun(self, request_id: str) -> None:
        """It has its first token."""
        if (deadline := self._deadlines.get(request_id)) is not None:
            deadline.first_token = math.inf

    def remove(self, request_id: str) -> None:
        """It ended."""
        self._deadlines.pop(request_id, None)

    def may_be_late(self, now: float) -> bool:
        """Whether `take_late` is worth calling: also where nothing is computed."""
        return now >= self._next

    def take_late(self, now: float) -> list[str]:
        """The requests whose time is over, each once."""
        if now < self._next:
            return []
        late = [r for r, deadline in self._deadlines.items() if deadline.next <= now]
        for request_id in late:
            del self._deadlines[request_id]
        self._next = min((d.next for d in self._deadlines.values()), default=math.inf)
        return late


def _after(arrival: float, milliseconds: int | None) -> float:
    return math.inf if milliseconds is None else arrival + milliseconds / 1000
