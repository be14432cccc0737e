"""Each check notices its own kind of harm."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.core.request import Request, RequestStatus
from tests.core.fake_worker import FakeCore


def core() -> FakeCore:
    """Two requests run (with a step in flight), one waits."""
    made = FakeCore(windows=(None, 20), num_blocks=40, max_num_seqs=2, depth=2, max_model_len=200)
    for i in range(3):
        made.add(str(i), [i + 1] * 70, max_tokens=30, ignore_eos=True)
    for _ in range(6):
        made.step()
    made.schedule()
    made.scheduler.check_integrity()
    return made


def request(made: FakeCore, request_id: str = "0") -> Request:
    return made.scheduler._requests[request_id]


def lose_request(made: FakeCore) -> None:
    made.scheduler._running.requests.pop()


def run_too_many(made: FakeCore) -> None:
    waiting = made.scheduler._waiting.requests
    made.scheduler._running.requests.append(waiting.pop())


def rename(made: FakeCore) -> None:
    request(made).request_id = "another"


def wrong_state(made: FakeCore) -> None:
    request(made).status = RequestStatus.PREEMPTED


def finished_but_waiting(made: FakeCore) -> None:
    request(made, "2").status = RequestStatus.FINISHED


def waiting_with_blocks(made: FakeCore) -> None:
    request(made, "2").block_tables[0].append(made.scheduler._kv.pool.null_block)


def waiting_with_progress(made: FakeCore) -> None:
    request(made, "2").num_computed_tokens = 1


def miscount_in_flight(made: FakeCore) -> None:
    request(made).num_in_flight_tokens += 1


def negative_placeholders(made: FakeCore) -> None:
    request(made).num_output_placeholders = -1


def too_many_computed(made: FakeCore) -> None:
    request(made).num_computed_tokens += 2


def gap_before_placeholders(made: FakeCore) -> None:
    request(made).num_computed_tokens -= 1


def past_its_end(made: FakeCore) -> None:
    request(made).max_num_tokens = 70


def outgrows_the_pool(made: FakeCore) -> None:
    request(made).max_num_tokens = 5000


def uneven_tables(made: FakeCore) -> None:
    request(made).block_tables[0].pop()


def short_tables(made: FakeCore) -> None:
    for table in request(made).block_tables:
        table.pop()


def null_in_the_window(made: FakeCore) -> None:
    request(made).block_tables[1][-1] = made.scheduler._kv.pool.null_block


def hole(made: FakeCore) -> None:
    pool, table = made.scheduler._kv.pool, request(made).block_tables[1]
    table[0], table[1] = pool.blocks[-1], pool.null_block


def a_block_twice(made: FakeCore) -> None:
    table = request(made).block_tables[0]
    table[1] = table[0]


def forgotten_holder(made: FakeCore) -> None:
    request(made).block_tables[0][0].ref_cnt += 1


def lost_free_block(made: FakeCore) -> None:
    made.scheduler._kv.pool._free.popleft()


def held_block_in_the_queue(made: FakeCore) -> None:
    pool = made.scheduler._kv.pool
    pool._free.append(request(made).block_tables[0][0])


def miscounted_queue(made: FakeCore) -> None:
    made.scheduler._kv.pool._free._size += 1


def miscounted_cached_blocks(made: FakeCore) -> None:
    made.scheduler._kv.pool._num_cached += 1


def hash_in_no_map(made: FakeCore) -> None:
    made.scheduler._kv.pool._by_hash[0].clear()


def hash_too_early(made: FakeCore) -> None:
    block = request(made).block_tables[0][-1]
    made.scheduler._kv.pool.cache(block, 0, b"x" * 16)


def wrong_hash(made: FakeCore) -> None:
    pool, block = made.scheduler._kv.pool, request(made).block_tables[0][0]
    pool.drop_hash(block)
    pool.cache(block, 0, b"x" * 16)


def hash_without_caching(made: FakeCore) -> None:
    made.scheduler._caches_prefixes = False


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lose_request, "in no queue, or in two"),
        (run_too_many, "3 requests run"),
        (rename, "queues and ids disagree"),
        (wrong_state, "among the running"),
        (finished_but_waiting, "among the waiting"),
        (waiting_with_blocks, "waits and holds blocks"),
        (waiting_with_progress, "waits with"),
        (miscount_in_flight, "in flight"),
        (negative_placeholders, "negative placeholders"),
        (too_many_computed, "computed tokens that nobody knows"),
        (gap_before_placeholders, "tokens before them are not computed"),
        (past_its_end, "should have ended"),
        (outgrows_the_pool, "may outgrow the pool"),
        (uneven_tables, "tables of lengths"),
        (short_tables, "computed past its table"),
        (null_in_the_window, "lost blocks it needs"),
        (hole, "holes in a table"),
        (a_block_twice, "has a block twice"),
        (forgotten_holder, "is in 1 tables"),
        (lost_free_block, "a free block is in no queue"),
        (held_block_in_the_queue, "a held block is in the free queue"),
        (miscounted_queue, "the free queue has lost count"),
        (miscounted_cached_blocks, "the cached blocks are miscounted"),
        (hash_in_no_map, "not all blocks with a hash can be found by it"),
        (hash_too_early, "has a hash before it has its tokens"),
        (wrong_hash, "wrong hash at 0"),
        (hash_without_caching, "a hash without prefix caching"),
    ],
)
def test_harm_is_noticed(harm: Callable[[FakeCore], None], message: str) -> None:
    made = core()
    harm(made)
    with pytest.raises(AssertionError, match=message):
        made.scheduler.check_integrity()
