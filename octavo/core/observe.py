"""Looking at the scheduler from outside, while somebody watches.

Steps are noted from the first look on until `WATCH_SECONDS` after the last one: a time stamp, and a
small struct for each request in it. Requests that end are noted too, so that none is kept for what
it was: prompts and grammars may be large. Nothing here changes what is scheduled.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from octavo.contracts.engine_view import (
    MAX_ENTRIES,
    MAX_STEPS,
    BlockMap,
    BlockView,
    EngineView,
    RequestView,
    StepEntry,
    StepView,
    WaitReason,
)
from octavo.contracts.features import Admission
from octavo.contracts.kv_spec import NULL_BLOCK_ID
from octavo.contracts.messages import SchedulerStats, ServiceClass
from octavo.core.block_pool import Block, BlockPool
from octavo.core.hooks import HookChain
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.policy import MAX_OVERTAKES, MAX_PASSED_OVER, RequestQueue
from octavo.core.request import Request, RequestStatus
from octavo.core.room import Room
from octavo.core.step_plan import Scheduled, StepRecord

WATCH_SECONDS = 5.0
"""How long steps are noted after the last look."""

MAX_SHOWN_WAITING = 100
MAX_SHOWN_BLOCKS = 131072
MAX_HOLDERS = 64

_MAX_REF_CNT = 127
_IS_HASHED = 128


class StepLog:
    """The last steps, and the ended requests that they name."""

    def __init__(self) -> None:
        self._steps: deque[StepView] = deque()
        self._num_entries = 0
        # By index, in the order of their ends, with the last step that may name them.
        self._ended: dict[int, tuple[RequestView, int]] = {}
        self._watched_until = 0.0

    def watch(self) -> None:
        """Somebody looks."""
        self._watched_until = time.monotonic() + WATCH_SECONDS

    @property
    def is_watched(self) -> bool:
        return time.monotonic() < self._watched_until

    def note(self, record: StepRecord, stats: SchedulerStats) -> None:
        """A step was settled. One that was planned before anyone looked has no beginning."""
        if not record.planned_at:
            return
        step = StepView(
            step_id=record.step_id,
            planned_at=record.planned_at,
            done_at=time.monotonic(),
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            generation_tokens=stats.generation_tokens,
            entries=list(map(_entry, record.scheduled)),
        )
        self._steps.append(step)
        self._num_entries += len(step.entries)
        while len(self._steps) > MAX_STEPS or self._num_entries > MAX_ENTRIES:
            oldest = self._steps.popleft()
            self._num_entries -= len(oldest.entries)
            self._forget_ended(oldest.step_id)

    def note_end(self, request: RequestView, last_step: int) -> None:
        """A request has ended that steps up to this one may name."""
        self._ended[request.index] = (request, last_step)

    def _forget_ended(self, step_id: int) -> None:
        """Steps up to this one are not remembered any more."""
        while self._ended:
            index, (_, last_step) = next(iter(self._ended.items()))
            if last_step > step_id:
                break
            del self._ended[index]

    def after(self, step_id: int) -> tuple[list[StepView], list[RequestView]]:
        """The steps after this one, and the ended requests in them."""
        steps = [step for step in self._steps if step.step_id > step_id]
        named = {entry.index for step in steps for entry in step.entries}
        ended = [self._ended[index][0] for index in sorted(named) if index in self._ended]
        return steps, ended


class Observer:
    """The scheduler as a person sees it who watches.

    Args:
        waiting, running: the scheduler's queues.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        room: Room,
        hooks: HookChain,
        *,
        waiting: RequestQueue,
        running: RequestQueue,
    ) -> None:
        self._pool = kv.pool
        self._room = room
        self._hooks = hooks
        self._waiting = waiting
        self._running = running
        self._log: StepLog | None = None  # while somebody watches

    def planned(self, record: StepRecord) -> None:
        """A step was planned."""
        if self._log is not None:
            record.planned_at = time.monotonic()

    def settled(self, record: StepRecord, stats: Callable[[], SchedulerStats]) -> None:
        """A step was settled; `stats` are asked for where somebody watches."""
        if self._log is None:
            return
        if self._log.is_watched:
            self._log.note(record, stats())
        else:
            self._log = None

    def ended(self, request: Request, last_step: int) -> None:
        """A request has ended that steps up to this one may name."""
        if self._log is not None and request.last_admitted_step >= 0:
            self._log.note_end(request_view(request, self._pool.null_block), last_step)

    def view(
        self,
        stats: SchedulerStats,
        *,
        is_paused: bool,
        is_budget_spent: bool,
        after_step: int,
        block_id: int | None,
    ) -> EngineView:
        """What is going on. Steps are noted from the first call on until `WATCH_SECONDS` after the
        last.

        Args:
            stats: the scheduler's, now.
            is_paused: whether the scheduler is.
            is_budget_spent: whether the last step gave out all the tokens it may.
            after_step: the last step that is known already.
            block_id: a block to tell more about.
        """
        if self._log is None:
            self._log = StepLog()
        self._log.watch()
        steps, ended = self._log.after(after_step)
        pool, running, waiting = self._pool, self._running.requests, self._waiting.requests
        shown = waiting[:MAX_SHOWN_WAITING]
        num_reserved = self._room.num_reserved_blocks(max(ServiceClass))
        reasons = waiting_reasons(
            shown,
            is_paused=is_paused,
            has_place=self._room.has_place,
            is_budget_spent=is_budget_spent,
            hooks=self._hooks,
            fits=lambda request: self._room.prefix_of(request, num_reserved) is not None,
        )
        view_of = partial(request_view, null_block=pool.null_block)
        requests = [*map(view_of, running)]
        requests += [view_of(request, reason=reason) for request, reason in zip(shown, reasons)]
        holders = [*running, *self._hooks.kept]
        return EngineView(
            now=time.monotonic(),
            stats=stats,
            steps=steps,
            requests=[*requests, *ended],
            num_hidden_requests=len(waiting) - len(shown),
            blocks=block_map(pool, holders),
            block=None if block_id is None else block_view(pool, block_id, holders),
        )


def _entry(scheduled: Scheduled) -> StepEntry:
    request, _, start, num_tokens, num_drafts, samples = scheduled
    num_known = num_tokens - num_drafts
    is_decode = num_known == 1 and start >= request.num_prompt_tokens
    return StepEntry(
        index=request.arrival_index,
        num_prefill=0 if is_decode else num_known,
        num_decode=1 if is_decode else 0,
        num_drafts=num_drafts,
        has_output=samples,
    )


def waiting_reasons(
    waiting: Iterable[Request],
    *,
    is_paused: bool,
    has_place: bool,
    is_budget_spent: bool,
    hooks: HookChain,
    fits: Callable[[Request], bool],
) -> Iterator[WaitReason]:
    """Why each of the waiting requests, in their order, was not admitted: what the scheduler would
    find now.

    Args:
        is_paused: whether the scheduler is.
        has_place: whether fewer than `max_num_seqs` requests run.
        fits: whether enough blocks are free for a request.
    """
    num_passed_over = 0
    is_held_up = False
    for request in waiting:
        parent = request.parent
        if parent is not None and (
            parent.status is RequestStatus.WAITING
            or parent.num_processed_tokens < parent.num_prompt_tokens
        ):
            yield WaitReason.PARENT
        elif hooks.admission(request)[0] is Admission.WAIT:
            yield WaitReason.FEATURE
        elif is_paused:
            yield WaitReason.PAUSED
        elif not has_place:
            yield WaitReason.PLACES
        elif is_budget_spent:
            yield WaitReason.TOKENS
        elif is_held_up:
            yield WaitReason.ORDER
        elif fits(request):
            yield WaitReason.NEXT
        else:
            num_passed_over += 1
            is_held_up = (
                num_passed_over >= MAX_PASSED_OVER or request.num_overtaken >= MAX_OVERTAKES
            )
            yield WaitReason.BLOCKS


def request_view(
    request: Request, null_block: Block, reason: WaitReason | None = None
) -> RequestView:
    """A request as it is now."""
    wire = request.engine_request
    return RequestView(
        index=request.arrival_index,
        request_id=request.request_id,
        status=request.status.value,
        reason=reason,
        arrival=wire.arrival_time,
        num_prompt_tokens=request.num_prompt_tokens,
        num_tokens=request.num_tokens,
        num_computed_tokens=request.num_computed_tokens,
        max_num_tokens=request.max_num_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_blocks=sum(len(table) - table.count(null_block) for table in request.block_tables),
        num_preemptions=request.num_preemptions,
        priority=wire.priority,
    )


def block_map(pool: BlockPool, holders: Sequence[Request]) -> BlockMap:
    """The pool now.

    Args:
        holders: all requests that hold blocks; of several, the first owns a block.
    """
    shown = pool.blocks[:MAX_SHOWN_BLOCKS]
    # 12 ms for 100,000 blocks, most of it waiting for memory.
    ref_cnts = np.fromiter((b.ref_cnt for b in shown), np.int64, len(shown))
    is_hashed = np.fromiter((b.block_hash is not None for b in shown), np.bool_, len(shown))
    flags = np.minimum(ref_cnts, _MAX_REF_CNT) + _IS_HASHED * is_hashed
    owners = np.full(len(pool.blocks), -1, "<i4")
    for request in reversed(holders):
        for table in request.block_tables:
            owners[[block.block_id for block in table]] = request.arrival_index
    owners[NULL_BLOCK_ID] = -1
    return BlockMap(
        num_blocks=len(pool.blocks),
        flags=flags.astype(np.uint8).tobytes(),
        owners=owners[: len(shown)].tobytes(),
    )


def block_view(pool: BlockPool, block_id: int, holders: Sequence[Request]) -> BlockView | None:
    """One block now; None where there is none of this id."""
    if not 0 <= block_id < len(pool.blocks):
        return None
    block = pool.blocks[block_id]
    places = [
        (request.arrival_index, place)
        for request in holders
        for table in request.block_tables
        for place, held in enumerate(table)
        if held is block and not block.is_null
    ]
    return BlockView(
        block_id=block_id,
        ref_cnt=block.ref_cnt,
        hash_prefix=None if block.block_hash is None else block.block_hash[:4].hex(),
        group_id=block.group_id,
        holders=places[:MAX_HOLDERS],
    )
