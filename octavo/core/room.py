"""Room for waiting requests: places in the batch, and blocks that nobody counts on."""

from __future__ import annotations

from itertools import islice

from octavo.contracts.messages import ServiceClass
from octavo.core.forks import Forks
from octavo.core.kv_cache_manager import KVCacheManager, Prefix
from octavo.core.policy import RequestQueue
from octavo.core.request import Request


class Room:
    """What is free, and what running requests of a lower class would leave.

    Args:
        running: the running requests, in order.
        max_num_seqs: most of them.
    """

    def __init__(
        self, kv: KVCacheManager, forks: Forks, running: RequestQueue, max_num_seqs: int
    ) -> None:
        self._kv = kv
        self._forks = forks
        self._running = running
        self._max_num_seqs = max_num_seqs

    @property
    def has_place(self) -> bool:
        """Whether one more may run."""
        return len(self._running.requests) < self._max_num_seqs

    def is_shared_with_higher(self, service_class: ServiceClass) -> bool:
        """Whether requests of a higher class run: one that waits, for a grammar or for blocks that
        lower ones cannot give, is slowed down by nobody."""
        running = self._running.requests
        return bool(running) and running[0].service_class < service_class

    def num_reserved_blocks(self, service_class: ServiceClass) -> int:
        """Blocks that prompts which run, of this class or a higher one, have not taken yet:
        admitting by these too would end in preemptions. Requests that are decoding take what is
        there."""
        return sum(
            self._kv.num_missing_blocks(request)
            for request in islice(self._running.requests, self._running.bounds(service_class)[1])
            if request.num_computed_tokens < request.num_tokens
        )

    def may_be_found(self, service_class: ServiceClass, num_reserved: int) -> bool:
        """Whether there are a place and blocks, or requests of a lower class that have some."""
        running = self._running.requests
        if running and running[-1].service_class > service_class:
            return True
        return self.has_place and self._kv.num_free_blocks > num_reserved

    def prefix_of(self, request: Request, num_reserved: int) -> Prefix | None:
        """Where the request begins; None if it does not fit, with all the tokens it knows, into
        what is free and not reserved."""
        num_free = self._kv.num_free_blocks - num_reserved
        forked = self._forks.prefix_of(request)
        if forked and self._kv.num_blocks_to_admit(request, forked) <= num_free:
            return forked
        prefix = self._kv.get_computed_blocks(request)
        return prefix if self._kv.num_blocks_to_admit(request, prefix) <= num_free else None

    def victims_for(self, request: Request, num_reserved: int) -> list[Request]:
        """Running requests of lower classes to preempt for a waiting one, in this order: as few as
        leave a place and enough blocks; none where even all of them would not."""
        running = self._running.requests
        lower = running[self._running.bounds(request.service_class)[1] :][::-1]
        if not lower:
            return []
        prefix = self._kv.get_computed_blocks(request)
        num_free = self._kv.num_free_blocks - num_reserved
        num_missing = self._kv.num_blocks_to_admit(request, prefix) - num_free
        count = self._kv.num_to_free(lower, num_missing, without=prefix)
        return [] if count is None else lower[:count]
