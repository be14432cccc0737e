"""Requests that begin on the keys and values of one of the same prompt: completions of one request
(n > 1), and beams.

Such a request waits until its parent's prompt is computed, and then shares its blocks. A parent
that ends before leaves them, not held, to those that wait. One whose children are yet to come (a
beam) is remembered here, up to a number of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.core.block_hash import BlockHasher
from octavo.core.kv_cache_manager import KVCacheManager, Prefix
from octavo.core.request import Request, RequestStatus
from octavo.core.step_plan import StepPlan

_MAX_LEFT = 2
"""Ended requests whose blocks are remembered for children yet to come, per running one."""


class Forks:
    """Parents and children.

    Args:
        max_num_seqs: most requests that run.
    """

    def __init__(self, kv: KVCacheManager, hasher: BlockHasher, *, max_num_seqs: int) -> None:
        self._kv = kv
        self._hasher = hasher
        self._max_left = _MAX_LEFT * max_num_seqs
        self._left: dict[str, Request] = {}  # ended, with a fork source; the oldest first

    def join(self, request: Request, requests: Mapping[str, Request]) -> None:
        """Give a new request its parent, if it names one of such a prompt.

        Args:
            requests: those that have not ended, by id.
        """
        parent_id = request.engine_request.fork_of
        if parent_id is None or request.logprobs_per_prompt_token:
            return
        parent, num_differing = requests.get(parent_id), 0
        if parent is None:
            parent, num_differing = self._left.get(parent_id), 1
        if parent is not None and self._hasher.have_same_prompt(
            parent, request, but_last=num_differing
        ):
            request.parent = parent
            parent.num_waiting_children += 1

    def must_wait(self, request: Request, plan: StepPlan) -> bool:
        """Whether the parent's prompt is not computed yet, by the steps before this one."""
        parent = request.parent
        return parent is not None and (
            parent.status is RequestStatus.WAITING
            or (
                parent.status is RequestStatus.RUNNING
                and plan.computed_before(parent) < parent.num_prompt_tokens
            )
        )

    def prefix_of(self, request: Request) -> Prefix | None:
        """What the request can begin on of its parent's; None if there is nothing (any more)."""
        parent = request.parent
        if parent is None or (
            parent.status is not RequestStatus.RUNNING and parent.fork_source is None
        ):
            return None
        return self._kv.fork(parent, request.num_prompt_tokens - 1)

    def leave(self, request: Request) -> None:
        """The request has its blocks, or does not come to that: it waits for no parent."""
        if request.parent is not None:
            request.parent.num_waiting_children -= 1
            request.parent = None

    def keep_source(self, request: Request) -> None:
        """A request ends, and what it computed is sound: leave its blocks to its children."""
        num_shared = request.num_prompt_tokens - 1
        if request.num_computed_tokens <= num_shared:
            return
        if request.engine_request.leaves_fork_source:
            request.fork_source = self._kv.fork_source_of(request, num_shared + 1)
            self._left[request.request_id] = request
            if len(self._left) > self._max_left:
                del self._left[next(iter(self._left))]
        elif request.num_waiting_children:
            request.fork_source = self._kv.fork_source_of(request, num_shared)

    def forget_sources(self, waiting: Sequence[Request]) -> None:
        """What ended requests left is not to be used any more."""
        self._left.clear()
        for request in waiting:
            if request.parent is not None:
                request.parent.fork_source = None
