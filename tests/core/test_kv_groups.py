from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.contracts.kv_spec import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    KVCacheSpec,
    MambaSpec,
    MLASpec,
)
from octavo.contracts.tensor import DType
from octavo.core.block_pool import BlockPool
from octavo.core.kv_groups import (
    FullAttentionManager,
    GroupManager,
    SlidingWindowManager,
    longest_common_hit,
    make_group_managers,
)
from octavo.errors import ConfigError
from tests.core.fake_worker import kv_config

HASHES = [bytes([i]) * 16 for i in range(12)]


def managers(*windows: int | None) -> tuple[GroupManager, ...]:
    config = kv_config(1 + 12 * len(windows), windows)
    return make_group_managers(config, BlockPool(config.num_blocks, len(windows)))


def cache(manager: GroupManager, *indices: int) -> None:
    for i in indices:
        (block,) = manager.pool.get_new_blocks(1)
        manager.pool.cache(block, manager.group_id, HASHES[i])


def needed_by_definition(window: int | None, length: int) -> set[int]:
    """Blocks that hold what the token at position 16 * length reads, itself apart."""
    position = 16 * length
    first = 0 if window is None else max(0, position - window + 1)
    return {p // 16 for p in range(first, position)}


def longest_by_definition(window: int | None, cached: set[int], limit: int) -> int:
    return max(n for n in range(limit + 1) if needed_by_definition(window, n) <= cached)


@pytest.mark.parametrize(
    ("window", "cached", "limit", "length", "null"),
    [
        (17, {2}, 3, 3, 2),  # 16 earlier tokens: one block
        (18, {2}, 3, 0, 0),  # 17: two
        (18, {1, 2}, 3, 3, 1),
        (18, {0, 2}, 3, 1, 0),
        (33, {0, 1, 4, 5}, 6, 6, 4),
        (33, {0, 1, 4}, 6, 2, 0),
        (1, set(), 4, 4, 4),  # reads nothing but itself
        (None, {0, 1, 3}, 6, 2, 0),
    ],
)
def test_hits(window: int | None, cached: set[int], limit: int, length: int, null: int) -> None:
    (manager,) = managers(window)
    cache(manager, *cached)
    hit = manager.longest_hit(HASHES, limit)
    assert len(hit) == length
    assert [block.is_null for block in hit] == [True] * null + [False] * (length - null)
    for i, block in enumerate(hit):
        assert block.is_null or block.block_hash == HASHES[i]


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.none() | st.integers(1, 100), st.sets(st.integers(0, 11))),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 12),
)
def test_the_common_hit_is_the_longest_that_all_can_serve(
    groups: list[tuple[int | None, set[int]]], limit: int
) -> None:
    made = managers(*(window for window, _ in groups))
    for manager, (_, cached) in zip(made, groups):
        cache(manager, *cached)
    expected = max(
        n
        for n in range(limit + 1)
        if all(needed_by_definition(window, n) <= cached for window, cached in groups)
    )
    hits = longest_common_hit(made, HASHES, limit)
    assert {len(hit) for hit in hits} == {expected}
    for hit, manager, (window, _) in zip(hits, made, groups):
        for i in needed_by_definition(window, expected):
            assert (hit[i].block_hash, hit[i].group_id) == (HASHES[i], manager.group_id)
        first = manager.first_needed_block(16 * expected)
        assert all(block.is_null for block in hit[:first])


@settings(max_examples=100)
@given(st.integers(1, 100), st.sets(st.integers(0, 11)), st.integers(0, 12))
def test_a_window_hit_is_the_longest(window: int, cached: set[int], limit: int) -> None:
    (manager,) = managers(window)
    cache(manager, *cached)
    expected = longest_by_definition(window, cached, limit)
    assert len(manager.longest_hit(HASHES, limit)) == expected


@given(st.integers(1, 100), st.integers(0, 200))
def test_first_needed_block(window: int, num_tokens: int) -> None:
    (manager,) = managers(window)
    first_position = max(0, num_tokens - window + 1)
    assert manager.first_needed_block(num_tokens) == first_position // 16


@given(st.integers(1, 100), st.integers(1, 60), st.integers(1, 300))
def test_no_request_holds_more_than_the_bound(window: int, flight: int, num_tokens: int) -> None:
    (manager,) = managers(window)
    bound = kv_config(9, (window,)).groups[0].spec.max_blocks(num_tokens, flight)
    for processed in range(num_tokens):
        end = min(num_tokens, processed + flight)
        assert -(-end // 16) - manager.first_needed_block(processed) <= bound
    assert bound <= -(-num_tokens // 16)


def config_of(*specs: KVCacheSpec) -> KVCacheConfig:
    groups = tuple(KVCacheGroup(layer_names=("l",), spec=spec) for spec in specs)
    return KVCacheConfig(num_blocks=9, groups=groups)


def test_kinds_of_groups() -> None:
    assert [type(m) for m in managers(None, 5)] == [FullAttentionManager, SlidingWindowManager]
    mla = make_group_managers(config_of(MLASpec(latent_size=8, dtype=DType.F32)), BlockPool(9, 1))
    assert isinstance(mla[0], FullAttentionManager)


def test_what_has_no_manager_is_refused() -> None:
    with pytest.raises(ConfigError, match="MambaSpec are not supported yet; supported: Full"):
        make_group_managers(config_of(MambaSpec(state_bytes=4)), BlockPool(9, 1))
    shape = {"num_kv_heads": 1, "head_size": 1, "head_size_v": 1, "dtype": DType.F32}
    mixed = config_of(FullAttentionSpec(**shape), FullAttentionSpec(**shape, block_size=32))
    with pytest.raises(ConfigError, match=r"share one block size; these have \[16, 32\]"):
        make_group_managers(mixed, BlockPool(9, 2))
