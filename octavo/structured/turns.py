"""What grammars may cost the requests beside them: a share of the time, in small pieces."""

from __future__ import annotations

from collections.abc import Iterable

MAX_SHARE = 0.15
"""Of the time, for costly masks and compiling together, while other requests run."""
COSTLY_SECONDS = 0.5e-3
"""Processor time of a request's mask in one step, from where on it is costly: 40 times what that of
a usual schema takes. llguidance's limits end a request before one takes much more than 10 ms."""


class TimeShare:
    """Spends time at most at `MAX_SHARE` of the rate at which it passes. Times are in seconds."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def is_free(self, now: float) -> bool:
        """Whether what was spent has been made up for."""
        return now >= self._free_at

    def spend(self, seconds: float, now: float) -> None:
        """So much was spent until now."""
        self._free_at = max(now, self._free_at) + seconds * (1 / MAX_SHARE - 1)


class Turns:
    """Requests whose masks are costly take part in a step one at a time, in turn, and rest between:
    other requests' steps would be as slow as the sum of them all. To rest changes no answer.

    A request is costly if its last mask was. Nobody rests in a step after one that had no others.

    Args:
        share: where masks are paid from.
    """

    def __init__(self, share: TimeShare) -> None:
        self._costly: dict[str, None] = {}  # whoever had no turn for the longest time comes first
        self._share = share
        self._has_others = False

    def __bool__(self) -> bool:
        return bool(self._costly)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._costly

    def may_go(self, request_id: str, now: float) -> bool:
        """Whether a request may take part in the next step."""
        if request_id not in self._costly or not self._has_others:
            return True
        return self._share.is_free(now) and next(iter(self._costly)) == request_id

    def note_step(self, request_ids: Iterable[str]) -> None:
        """These take part in a step."""
        self._has_others = any(r not in self._costly for r in request_ids)

    def note_cost(self, request_id: str, seconds: float, now: float) -> None:
        """A request's mask in the last step took so much processor time, some of it at the expense
        of others, if it had any."""
        self._costly.pop(request_id, None)
        if seconds > COSTLY_SECONDS:
            self._costly[request_id] = None
            if self._has_others:
                self._share.spend(seconds, now)

    def remove(self, request_id: str) -> None:
        """The request does not run any more. If it comes back, it is found costly again."""
        self._costly.pop(request_id, None)
