from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from octavo.contracts.kv_spec import BlockCopy
from octavo.core.block_hash import BlockHasher
from octavo.core.kv_cache_manager import KVCacheManager, Prefix
from octavo.core.request import Request
from tests.core.fake_worker import SECRET, kv_config, make_request


def manager(
    num_blocks: int = 20,
    windows: Sequence[int | None] = (None,),
    *,
    caching: bool = True,
    in_flight: int = 64,
) -> KVCacheManager:
    return KVCacheManager(
        kv_config(num_blocks, windows),
        hasher=BlockHasher(SECRET, 16) if caching else None,
        max_in_flight_tokens=in_flight,
    )


def request(num_tokens: int, kv: KVCacheManager, first_token: int = 0, **options: Any) -> Request:
    prompt = range(first_token, first_token + num_tokens)
    return Request(
        make_request(f"{first_token}", prompt, **options),
        arrival_index=0,
        num_groups=len(kv.groups),
        max_len=1000,
    )


def compute(kv: KVCacheManager, request: Request, num_tokens: int | None = None) -> Prefix:
    """Admit and compute a request, all of it or its first tokens."""
    prefix = kv.get_computed_blocks(request)
    count = (num_tokens or request.num_tokens) - prefix.num_tokens
    assert kv.allocate_slots(request, count, prefix) is not None
    request.num_computed_tokens = prefix.num_tokens + count
    return prefix


def ids(request: Request, group: int = 0) -> list[int]:
    return [block.block_id for block in request.block_tables[group]]


def test_allocation_is_all_or_nothing() -> None:
    kv = manager(num_blocks=4)
    a = request(33, kv)
    assert kv.allocate_slots(a, 49, kv.get_computed_blocks(a)) is None
    assert (ids(a), kv.num_free_blocks) == ([], 3)
    assert kv.allocate_slots(a, 33, kv.get_computed_blocks(a)) == ([1, 2, 3],)
    a.num_computed_tokens = 33
    assert kv.allocate_slots(a, 16) is None
    assert ids(a) == [1, 2, 3]
    assert kv.allocate_slots(a, 15) == ([],)


def test_cached_blocks_that_are_taken_again_are_no_longer_free() -> None:
    kv = manager(num_blocks=5)
    a, b = request(50, kv), request(70, kv)
    compute(kv, a)
    kv.free(a)
    prefix = kv.get_computed_blocks(b)
    assert (prefix.num_tokens, kv.num_free_blocks) == (48, 4)
    assert kv.allocate_slots(b, 22, prefix) is None  # three come back, and one is left for two
    assert (kv.num_free_blocks, ids(b)) == (4, [])
    assert kv.allocate_slots(b, 16, prefix) is not None


def test_groups_take_blocks_from_one_pool_together_or_not() -> None:
    kv = manager(num_blocks=6, windows=(None, 40))
    a = request(48, kv)
    assert kv.allocate_slots(a, 48, kv.get_computed_blocks(a)) is None
    assert kv.num_free_blocks == 5
    assert kv.allocate_slots(a, 32, kv.get_computed_blocks(a)) == ([1, 2], [3, 4])


@pytest.mark.parametrize("n", [1, 15, 16, 17, 31, 32, 33, 48])
def test_a_full_hit_leaves_a_token_to_compute(n: int) -> None:
    kv = manager()
    a = request(n, kv)
    compute(kv, a)
    kv.free(a)
    hit = kv.get_computed_blocks(request(n, kv))
    assert hit.num_tokens == 16 * ((n - 1) // 16) < n
    assert len(hit.blocks[0]) == hit.num_tokens // 16


def test_blocks_are_shared_from_the_moment_they_are_allocated() -> None:
    kv = manager()
    a, b = request(40, kv), request(40, kv)
    compute(kv, a)
    assert compute(kv, b).num_tokens == 32
    assert ids(b) == [*ids(a)[:2], 4]
    assert [block.ref_cnt for block in b.block_tables[0]] == [2, 2, 1]


def test_chunks_are_hashed_as_far_as_they_go_and_never_past_known_tokens() -> None:
    kv = manager()
    a = request(40, kv)
    compute(kv, a, 20)
    assert [bool(b.block_hash) for b in a.block_tables[0]] == [True, False]
    assert kv.allocate_slots(a, 20 + 30)  # drafts behind the 40 known ones
    assert [bool(b.block_hash) for b in a.block_tables[0]] == [True, True, False, False, False]


def test_without_caching_nothing_is_hashed_or_found() -> None:
    kv = manager(caching=False)
    a = request(40, kv)
    compute(kv, a)
    kv.free(a)
    assert kv.get_computed_blocks(request(40, kv)).num_tokens == 0
    assert not any(block.block_hash for block in kv.pool.blocks)


def test_prompt_logprobs_do_not_read_the_cache_but_fill_it() -> None:
    kv = manager()
    compute(kv, request(40, kv, prompt_logprobs=1))
    assert kv.get_computed_blocks(request(40, kv, prompt_logprobs=1)).num_tokens == 0
    assert kv.get_computed_blocks(request(40, kv)).num_tokens == 32


def test_room_is_told_exactly() -> None:
    """Up to `num_roomy_tokens` there is nothing to do, and one further there is."""
    kv = manager()
    a = request(5, kv)
    compute(kv, a)
    assert a.num_roomy_tokens == 15  # at 16 the block gets its hash
    a.token_ids += range(100, 120)
    a.num_computed_tokens = 15
    assert kv.allocate_slots(a, 1) == ([],)
    assert a.block_tables[0][0].block_hash
    assert a.num_roomy_tokens == 16
    a.num_computed_tokens = 16
    assert kv.allocate_slots(a, 1) == ([2],)
    assert a.num_roomy_tokens == 31
    kv.free(a)
    assert a.num_roomy_tokens == 0


class TestWindows:
    def test_blocks_go_by_processed_tokens(self) -> None:
        kv = manager(windows=(20,))
        a = request(100, kv)
        compute(kv, a, 64)
        a.num_in_flight_tokens = 64
        assert kv.allocate_slots(a, 16)
        assert ids(a) == [1, 2, 3, 4, 5]
        a.num_computed_tokens, a.num_in_flight_tokens = 80, 32
        # 48 are processed: the next token, at 48, reads from 29 on.
        kv.allocate_slots(a, 1)
        assert ids(a) == [0, 2, 3, 4, 5, 6]
        a.num_computed_tokens, a.num_in_flight_tokens = 81, 1
        kv.allocate_slots(a, 1)  # position 80 reads from 61 on
        assert ids(a) == [0, 0, 0, 4, 5, 6]
        kv.free(a)
        assert kv.pool.num_used_blocks == 0

    def test_what_slid_out_can_still_be_found(self) -> None:
        kv = manager(windows=(20,))
        a = request(100, kv)
        compute(kv, a, 96)
        kv.allocate_slots(a, 4)
        hit = kv.get_computed_blocks(request(65, kv))
        assert hit.num_tokens == 64
        assert [block.is_null for block in hit.blocks[0]] == [True, True, False, False]

    def test_a_hit_holds_only_what_is_read(self) -> None:
        kv = manager(windows=(None, 20))
        compute(kv, request(100, kv))
        b = request(100, kv)
        assert compute(kv, b).num_tokens == 96
        times = kv.pool.sampler.take()
        assert times is not None
        assert len(times.reuse_gaps) == 1  # of block 1
        assert [ids(b, 1)[:4], 0 in ids(b, 1)[4:]] == [[0] * 4, False]
        assert 0 not in ids(b, 0)


class TestForks:
    @pytest.mark.parametrize(
        ("prompt", "num_shared", "copies"),
        [(40, 2, 1), (33, 2, 0), (32, 1, 1), (17, 1, 0), (7, 0, 1)],
    )
    def test_full_blocks_are_shared_the_rest_is_copied(
        self, prompt: int, num_shared: int, copies: int
    ) -> None:
        kv = manager()
        a, b = request(prompt, kv), request(prompt, kv)
        compute(kv, a)
        prefix = kv.fork(a, prompt - 1)
        assert prefix is not None
        assert prefix.is_fork
        assert prefix.num_tokens == prompt - 1
        assert kv.num_blocks_to_admit(b, prefix) == 1
        assert kv.allocate_slots(b, 1, prefix)
        assert ids(b)[:num_shared] == ids(a)[:num_shared]
        assert ids(b)[num_shared] not in ids(a)
        assert len(ids(b)) == num_shared + 1
        assert kv.pool.sampler.take() is None  # no prompt has found anything
        expected = [BlockCopy(src=ids(a)[-1], dst=ids(b)[-1])] if copies else []
        assert kv.take_block_copies() == expected
        assert kv.take_block_copies() == []

    def test_the_source_is_held_until_the_step_is_built(self) -> None:
        kv = manager(num_blocks=6)
        a, b = request(20, kv), request(20, kv)
        compute(kv, a)
        a.fork_source = kv.fork_source_of(a, 19)
        source = a.block_tables[0][1]
        kv.free(a)
        prefix = kv.fork(a, 19)
        assert prefix is not None
        assert kv.num_blocks_to_admit(b, prefix) == 3  # the source comes on top while it is held
        assert kv.allocate_slots(b, 1, prefix)
        assert source.ref_cnt == 1
        assert source.block_id not in [b.block_id for b in kv.pool.get_new_blocks(2)]
        kv.take_block_copies()
        assert source.ref_cnt == 0

    def test_a_source_handed_out_anew_is_lost(self) -> None:
        kv = manager(num_blocks=5, caching=False)
        a = request(40, kv)
        compute(kv, a)
        a.fork_source = kv.fork_source_of(a, 39)
        kv.free(a)
        assert kv.fork(a, 39) is not None
        tail = a.fork_source.blocks[0][-1]
        kv.pool.get_new_blocks(1)  # the one that nobody ever had
        assert kv.fork(a, 39) is not None
        assert kv.pool.get_new_blocks(1) == [tail]  # the tail goes first
        assert kv.fork(a, 39) is None

    def test_what_slid_out_of_the_parents_window_is_lost(self) -> None:
        kv = manager(windows=(17,))
        a = request(48, kv)
        compute(kv, a)
        assert kv.fork(a, 47) is not None
        a.token_ids += range(500, 540)
        kv.allocate_slots(a, 17)
        a.num_computed_tokens = 65
        kv.allocate_slots(a, 16)
        assert ids(a)[:3] == [0, 0, 0]
        assert kv.fork(a, 47) is None

    def test_a_window_needs_only_its_part(self) -> None:
        for at_once in (False, True):  # then the parent still holds all
            kv = manager(windows=(17, None))
            a = request(60, kv)
            compute(kv, a, 60 if at_once else 48)
            if not at_once:
                kv.allocate_slots(a, 12)
            assert (ids(a)[0] == 0) == (not at_once)
            prefix = kv.fork(a, 59)
            assert prefix is not None
            assert [block.is_null for block in prefix.blocks[0]] == [True, True, False]
            assert not any(block.is_null for block in prefix.blocks[1])
            assert len(prefix.copy_from) == 2

    def test_a_free_source_takes_room_too(self) -> None:
        kv = manager(num_blocks=3, caching=False)
        a, b = request(20, kv), request(20, kv)
        compute(kv, a)
        a.fork_source = kv.fork_source_of(a, 19)
        kv.free(a)
        prefix = kv.fork(a, 19)
        assert prefix is not None
        assert kv.allocate_slots(b, 1, prefix) is None  # one to share, one to copy, one to fill
        assert (ids(b), kv.num_free_blocks) == ([], 2)


class TestSizes:
    def test_admission_counts_what_it_will_take(self) -> None:
        kv = manager()
        a = request(40, kv)
        compute(kv, a)
        b = request(60, kv)
        prefix = kv.get_computed_blocks(b)
        assert kv.num_blocks_to_admit(b, prefix) == 2  # two of four are shared
        kv.free(a)
        free = kv.num_free_blocks
        assert kv.num_blocks_to_admit(b, prefix) == 4  # these leave the free queue
        compute(kv, b)
        assert free - kv.num_free_blocks == 4

    def test_missing_blocks_of_a_prompt_under_way(self) -> None:
        kv = manager(windows=(None, 20), in_flight=16)
        a = request(100, kv)
        compute(kv, a, 16)
        assert kv.max_blocks(100) == 7 + 4
        assert kv.num_missing_blocks(a) == 11 - 2

    def test_blocks_of_drafts_that_were_wrong_are_not_missing(self) -> None:
        kv = manager()
        a = request(20, kv)
        compute(kv, a)
        assert kv.allocate_slots(a, 40)
        assert len(ids(a)) == 4 > kv.max_blocks(20)
        assert kv.num_missing_blocks(a) == 0

    @pytest.mark.parametrize(
        ("windows", "num_blocks", "fits"),
        [((None,), 5, 64), ((None, None), 5, 32), ((20,), 5, 64), ((20,), 8, 500), ((None,), 1, 0)],
    )
    def test_the_longest_request(
        self, windows: tuple[int | None, ...], num_blocks: int, fits: int
    ) -> None:
        assert manager(num_blocks, windows).longest_request(500) == fits


def test_reset_waits_for_all_to_be_free() -> None:
    kv = manager()
    a = request(40, kv)
    compute(kv, a)
    assert not kv.reset_prefix_cache()
    assert a.block_tables[0][0].block_hash
    kv.free(a)
    assert kv.pool.num_cached_blocks == 2
    assert kv.reset_prefix_cache()
    assert kv.pool.num_cached_blocks == 0
    assert kv.get_computed_blocks(a).num_tokens == 0


def test_victims_are_counted_until_they_have_enough() -> None:
    kv = manager(num_blocks=20)
    a, b, c = request(48, kv), request(60, kv), request(40, kv, first_token=500)
    for each in (a, b, c):  # a: 1 2 3; b: 1 2 3 4; c: 5 6 7
        compute(kv, each)
    assert ids(b) == [*ids(a), 4]
    nothing, prefix = Prefix(([],)), kv.get_computed_blocks(a)
    assert [kv.num_to_free([b, a, c], n, without=nothing) for n in (0, 1, 2, 4, 5, 7)] == (
        [1, 1, 2, 2, 3, 3]
    )
    assert kv.num_to_free([b, a, c], 8, without=nothing) is None
    assert kv.num_to_free([b, c], 5, without=nothing) is None  # a holds what b shares
    assert kv.num_to_free([b, a, c], 6, without=prefix) is None  # whose two blocks stay
    assert kv.num_to_free([b, a, c], 5, without=prefix) == 3
