"""Whether the scheduler gives out tokens."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from octavo.core.request import Request, RequestStatus


class PauseState(enum.Enum):
    """The names are vLLM's."""

    UNPAUSED = "unpaused"
    PAUSED_NEW = "paused_new"  # requests that have begun go on, those that wait are not admitted
    PAUSED_ALL = "paused_all"  # nothing is computed; requests keep their blocks


def have_begun(requests: Iterable[Request]) -> bool:
    """Whether any of these unfinished requests runs, or did before a preemption."""
    return any(request.status is not RequestStatus.WAITING for request in requests)
