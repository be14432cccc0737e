"""How a running step and the world wait for each other: counters, and collectives over ranks."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

import numpy as np

from octavo.errors import KernelError


class Counters(ABC):
    """The counters that a graph's `signal` and `wait` ops name, 0 when it is captured. They only
    rise: the n-th step signals n. Any thread may use them."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def value(self, counter: int) -> int:
        """The counter now. Raises KernelError where the graph has none of that number."""

    @abstractmethod
    def add(self, counter: int, n: int = 1) -> None:
        """Count n more, and wake those that wait. Raises KernelError, as `value`."""

    @abstractmethod
    def wait(self, counter: int, target: int, timeout: float | None = None) -> bool:
        """Wait until the counter has reached `target`; False after `timeout` seconds.

        Raises:
            KernelError: no such counter, or `cancel` was called.
        """

    @abstractmethod
    def cancel(self, reason: str) -> None:
        """Who should have counted cannot: every wait that is not over fails, now and later, and
        with it the step that waits."""


class ThreadCounters(Counters):
    """Counters among Python threads."""

    def __init__(self) -> None:
        self._values: list[int] = []
        self._changed = threading.Condition()
        self._reason: str | None = None

    def __len__(self) -> int:
        return len(self._values)

    def grow(self, size: int) -> None:
        """At least `size` counters from now on."""
        self._values += [0] * (size - len(self._values))

    def value(self, counter: int) -> int:
        self._check(counter)
        return self._values[counter]

    def add(self, counter: int, n: int = 1) -> None:
        self._check(counter)
        with self._changed:
            self._values[counter] += n
            self._changed.notify_all()

    def wait(self, counter: int, target: int, timeout: float | None = None) -> bool:
        self._check(counter)
        with self._changed:
            self._changed.wait_for(
                lambda: self._reason is not None or self._values[counter] >= target, timeout
            )
            if self._values[counter] >= target:
                return True
            if self._reason is not None:
                raise KernelError(f"wait for counter {counter}: {self._reason}")
            return False

    def cancel(self, reason: str) -> None:
        with self._changed:
            self._reason = reason
            self._changed.notify_all()

    def _check(self, counter: int) -> None:
        if not 0 <= counter < len(self._values):
            raise KernelError(
                f"counter {counter} does not exist; the program has {len(self._values)}"
            )


class Collective(ABC):
    """Ranks that compute parts of one step side by side. Every rank makes the same calls in the
    same order.

    Attributes:
        rank, size: this rank, and how many there are.
    """

    rank: int
    size: int

    @abstractmethod
    def all_reduce(self, rows: np.ndarray) -> None:
        """rows [n, width] float32 become their sums over all ranks, added in order of rank, in
        place: the same bits on every rank, whichever comes first. Called without the ops' threads
        at work; an exception fails the step."""
