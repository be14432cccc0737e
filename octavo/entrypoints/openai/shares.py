"""What API keys may hold of something that all of them share: streams, uploads, bytes of files.

A key may take more as long as it has no more than it leaves free (Choudhury and Hahne, "Dynamic
Queue Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking
6(2), 1998): one alone comes to a half, and `n` that take turns to an (n + 1)th each. However many
there are, one that has nothing finds a place where there is any.
"""

from __future__ import annotations

from octavo.entrypoints.openai.errors import unavailable
from octavo.entrypoints.openai.ledger import NOBODY, Ledger


def exceeds_share(own: int, total: int, limit: int, amount: int = 1) -> bool:
    """Would a key hold more than is free now?

    Args:
        own: what it holds.
        total: what all hold.
        limit: what all may hold.
        amount: what it wants besides.
    """
    return own + amount > limit - total


class StreamPlaces:
    """How many resumable streams may run or be read, over all front ends.

    Args:
        count: how many.
        ledger: where front ends see each other's.
    """

    def __init__(self, count: int, ledger: Ledger) -> None:
        self._count = count
        self._ledger = ledger
        ledger.usage(NOBODY)  # while there is room for a row

    def take(self, key: str | None) -> None:
        """One begins. Raises APIError 503: there is no place for it."""
        usage = self._ledger.usage(key or NOBODY)
        with self._ledger.lock:
            own, total = int(sum(usage.streams)), self._ledger.num_streams()
            what = None
            if total >= self._count:
                what = f"{total} resumable streams run or are read, of at most {self._count}"
            elif key is not None and exceeds_share(own, total, self._count):
                what = f"{own} resumable streams of this API key run or are read, its share"
            if what is not None:
                raise unavailable(f"{what}; leave resumable out", "too_many_streams")
            usage.streams[usage.front_end] += 1

    def take_again(self, key: str | None) -> None:
        """One that has ended is read: nobody is refused what is kept for him."""
        usage = self._ledger.usage(key or NOBODY)
        usage.streams[usage.front_end] += 1

    def give_back(self, key: str | None) -> None:
        """One neither runs nor is read any more."""
        usage = self._ledger.usage(key or NOBODY)
        usage.streams[usage.front_end] -= 1
