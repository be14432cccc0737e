"""How many connections a process holds: those that wait for a request make room for new ones."""

from __future__ import annotations

import resource
import sys
from typing import Protocol

_MOST_DESCRIPTORS = 1 << 16
_OTHER_DESCRIPTORS = 256
"""Kept for what is no connection: libraries, files of batches, the core's sockets."""


class Connection(Protocol):
    """What can be dropped."""

    def drop(self) -> None: ...


class IdleConnections:
    """Connections without a request, the one that has been so for the longest time first.

    Who opens connections and says nothing, or a byte now and then (slowloris), would else take all
    descriptors that the process may have, and nobody could come in, /health included.

    Attributes:
        most: connections that there may be, busy ones too.
    """

    def __init__(self) -> None:
        self.most = sys.maxsize
        self._num_open = 0
        self._idle: dict[Connection, None] = {}

    def opened(self, connection: Connection) -> None:
        """A new one has come; the one that has been idle longest goes if there are too many."""
        self._num_open += 1
        self._idle[connection] = None
        if self._num_open > self.most:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            oldest.drop()

    def closed(self, connection: Connection) -> None:
        """One is gone."""
        self._num_open -= 1
        self._idle.pop(connection, None)

    def busy(self, connection: Connection) -> None:
        """A request has come."""
        self._idle.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        """Its requests have been answered."""
        self._idle[connection] = None


def most_connections() -> int:
    """How many this process can hold, after raising its limit of descriptors as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ceiling = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < ceiling:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
        soft = ceiling
    num = ceiling if soft == resource.RLIM_INFINITY else soft
    return max(num - _OTHER_DESCRIPTORS, num // 2)
