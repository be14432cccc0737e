"""Whether the scheduler gives out tokens."""

from __future__ import annotations

import enum


class PauseState(enum.Enum):
    """The names are vLLM's."""

    UNPAUSED = "unpaused"
    PAUSED_NEW = "paused_new"  # requests that have begun go on, those that wait are not admitted
    PAUSED_ALL = "paused_all"  # nothing is computed; requests keep their blocks
