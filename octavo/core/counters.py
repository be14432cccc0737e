"""What the scheduler counts."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.contracts.messages import EngineOutput, SchedulerStats
from octavo.core.kv_cache_manager import Prefix
from octavo.core.request import Request


class Counters:
    """Totals since the start. Completions that name another as their fork's origin do not count
    their prompt again.

    Args:
        num_blocks: what requests can hold (the null block apart).
        caches_prefixes: whether prompts are looked up at all.
    """

    def __init__(self, num_blocks: int, *, caches_prefixes: bool) -> None:
        self._stats = SchedulerStats(num_blocks=num_blocks)
        self._caches_prefixes = caches_prefixes

    def count_step(self, num_tokens: int) -> None:
        """A step was planned, with so many tokens."""
        self._stats.num_steps += 1
        self._stats.step_tokens = num_tokens

    def count_prefix(self, request: Request, prefix: Prefix) -> None:
        """Once per prompt, however long it waited and however often it comes back."""
        request.num_cached_tokens = prefix.num_tokens
        is_first = request.engine_request.fork_of is None
        if self._caches_prefixes and is_first and not request.skips_prefix_cache:
            self._stats.prefix_queries += request.num_prompt_tokens
            self._stats.prefix_hits += prefix.num_tokens

    def count_preemption(self) -> None:
        """A request lost its blocks."""
        self._stats.num_preemptions += 1

    def count_first_output(self, request: Request, output: EngineOutput) -> None:
        """A request's user hears of it for the first time: of how much of the prompt was cached."""
        request.has_output = True
        output.num_cached_tokens = request.num_cached_tokens
        if request.engine_request.fork_of is None:
            self._stats.prompt_tokens += request.num_prompt_tokens

    def count_results(self, num_new_tokens: int, forward_seconds: float) -> None:
        """A step's results are in: so many tokens, of a forward that took so long."""
        self._stats.generation_tokens += num_new_tokens
        self._stats.forward_seconds += forward_seconds

    def snapshot(self, **now: Any) -> SchedulerStats:
        """A copy, with those fields that are no totals."""
        return msgspec.structs.replace(self._stats, **now)
