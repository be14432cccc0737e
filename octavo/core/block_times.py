"""How long contents of KV blocks can be found, lie unused, and are used again: of a few blocks.

A content begins when its block gets a hash, is used when a prompt finds it, and ends when its
block is handed out for another one. Only every `SAMPLE_EVERY`th block is watched, so that nothing
else costs more than a look into a small dictionary.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from octavo.contracts.messages import BlockTimes

SAMPLE_EVERY = 64
_FIRST = 1  # block 0 is the null block

_MAX_TIMES = 256
"""Most times of a kind that are kept until they are taken."""


class _Content:
    """The content of one block. Seconds of the clock."""

    __slots__ = ("cached_at", "freed_at", "used_at")

    def __init__(self, now: float) -> None:
        self.cached_at = now
        self.used_at = now
        self.freed_at = now


class BlockSampler:
    """Watches some blocks of a pool."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._contents: dict[int, _Content] = {}  # by block id
        self._times = BlockTimes()

    def cached(self, block_id: int) -> None:
        """A block got a hash."""
        if block_id % SAMPLE_EVERY == _FIRST:
            self._contents[block_id] = _Content(self._clock())

    def used(self, block_id: int) -> None:
        """A prompt found a block, held or not."""
        if (content := self._contents.get(block_id)) is not None:
            now = self._clock()
            _note(self._times.reuse_gaps, now - content.used_at)
            content.used_at = now

    def freed(self, block_id: int) -> None:
        """A block has no holder any more, and keeps its hash."""
        if (content := self._contents.get(block_id)) is not None:
            content.freed_at = self._clock()

    def evicted(self, block_id: int) -> None:
        """A block is handed out for something else."""
        if (content := self._contents.pop(block_id, None)) is not None:
            now = self._clock()
            _note(self._times.lifetimes, now - content.cached_at)
            _note(self._times.idle, now - content.freed_at)

    def forgotten(self, block_id: int) -> None:
        """A block lost its hash for another reason, which says nothing of its time."""
        self._contents.pop(block_id, None)

    def take(self) -> BlockTimes | None:
        """What was seen since the last call; None: nothing."""
        times = self._times
        if not (times.lifetimes or times.reuse_gaps):
            return None
        self._times = BlockTimes()
        return times


def _note(times: list[float], seconds: float) -> None:
    if len(times) < _MAX_TIMES:
        times.append(seconds)
