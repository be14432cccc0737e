"""The invariants of the core that can be seen in its state, checked from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from octavo.core.block_hash import BlockHasher
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.request import Request, RequestStatus
from octavo.core.step_plan import StepRecord


def check_scheduler(
    *,
    requests: Mapping[str, Request],
    waiting: Sequence[Request],
    running: Sequence[Request],
    kept: Sequence[Request],
    in_flight: Iterable[StepRecord],
    kv: KVCacheManager,
    hasher: BlockHasher | None,
    max_num_seqs: int,
) -> None:
    """Raise AssertionError, naming what is wrong, if an invariant is broken.

    Args:
        requests: all that have not ended, by id.
        kept: ended ones whose blocks a hook keeps.
        hasher: None where prefix caching is off: then no block may have a hash.
    """
    queued = [*waiting, *running]
    _require(len(queued) == len(requests), "a request is in no queue, or in two")
    _require({r.request_id for r in queued} == set(requests), "queues and ids disagree")
    _require(len(running) <= max_num_seqs, f"{len(running)} requests run")
    for request in waiting:
        _check_waiting(request)
    flying: Counter[int] = Counter()
    for record in in_flight:
        for request, epoch, _, num_tokens, _, _ in record.scheduled:
            if epoch == request.epoch:
                flying[id(request)] += num_tokens
    for request in running:
        _require(request.status is RequestStatus.RUNNING, f"{request} among the running")
        _require(request.num_in_flight_tokens == flying[id(request)], f"{request} in flight")
        _check_running(request, kv)
    holders = Counter(
        block.block_id
        for request in (*running, *kept)
        for table in request.block_tables
        for block in table
        if not block.is_null
    )
    kv.pool.check_integrity(holders)
    for request in running:
        _check_hashes(request, kv, hasher)
    if hasher is None:
        _require(not any(b.block_hash for b in kv.pool.blocks), "a hash without prefix caching")


def _check_waiting(request: Request) -> None:
    waits = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
    _require(waits, f"{request} among the waiting")
    _require(not any(request.block_tables), f"{request} waits and holds blocks")
    counts = (
        request.num_computed_tokens,
        request.num_in_flight_tokens,
        request.num_output_placeholders,
        request.num_drafts_in_flight,
        request.num_cached_blocks,
    )
    _require(not any(counts), f"{request} waits with {counts}")


def _check_running(request: Request, kv: KVCacheManager) -> None:
    _require(request.num_tokens < request.max_num_tokens, f"{request} should have ended")
    _require(request.num_output_placeholders >= 0, f"{request} has negative placeholders")
    known = request.num_computed_tokens - request.num_output_placeholders
    _require(known <= request.num_tokens, f"{request} computed tokens that nobody knows")
    _require(
        request.num_output_placeholders == 0 or known == request.num_tokens - 1,
        f"{request} has placeholders, and tokens before them are not computed",
    )
    most = request.num_tokens_with_spec + request.num_output_placeholders
    _require(request.num_computed_tokens <= most, f"{request} computed past all its tokens")
    _require(request.num_processed_tokens >= 0, f"{request} has more in flight than computed")
    lengths = {len(table) for table in request.block_tables}
    _require(len(lengths) == 1, f"{request} has tables of lengths {lengths}")
    (length,) = lengths
    _require(
        request.num_computed_tokens <= length * kv.block_size, f"{request} computed past its table"
    )
    _require(
        kv.max_blocks(request.max_num_tokens) <= kv.pool.num_usable_blocks,
        f"{request} may outgrow the pool",
    )
    for group, table in zip(kv.groups, request.block_tables):
        first = group.first_needed_block(request.num_processed_tokens)
        _require(not any(b.is_null for b in table[first:]), f"{request} lost blocks it needs")
        num_null = sum(block.is_null for block in table)
        _require(all(b.is_null for b in table[:num_null]), f"{request} has holes in a table")
        ids = [block.block_id for block in table[num_null:]]
        _require(len(set(ids)) == len(ids), f"{request} has a block twice")


def _check_hashes(request: Request, kv: KVCacheManager, hasher: BlockHasher | None) -> None:
    """A block's hash is that of the known tokens it holds or is about to."""
    if hasher is None:
        return
    hasher.extend(request)
    num_sound = min(request.num_computed_tokens, request.num_tokens) // kv.block_size
    for group, table in zip(kv.groups, request.block_tables):
        for i, block in enumerate(table):
            if block.block_hash is None:
                continue
            _require(i < num_sound, f"{request}: block {i} has a hash before it has its tokens")
            right = block.block_hash == request.block_hashes[i]
            _require(right and block.group_id == group.group_id, f"{request}: wrong hash at {i}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
