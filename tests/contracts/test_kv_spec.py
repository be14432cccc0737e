"""Sizes of pages and pools."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.kv_spec import (
    BLOCK_SIZE,
    NULL_BLOCK_ID,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    KVCacheSpec,
    MambaSpec,
    MLASpec,
    SlidingWindowSpec,
    blocks_per_request,
    longest_request,
)
from octavo.contracts.tensor import DType

FULL = FullAttentionSpec(num_kv_heads=3, head_size=64, head_size_v=64, dtype=DType.BF16)
WINDOW = SlidingWindowSpec(
    num_kv_heads=3, head_size=64, head_size_v=64, dtype=DType.BF16, sliding_window=512
)

NARROW = SlidingWindowSpec(
    num_kv_heads=3, head_size=64, head_size_v=64, dtype=DType.BF16, sliding_window=32
)


@pytest.mark.parametrize(
    ("spec", "page_bytes"),
    [
        (FULL, 16 * 3 * (64 + 64) * 2),
        (WINDOW, 16 * 3 * (64 + 64) * 2),
        (
            FullAttentionSpec(num_kv_heads=1, head_size=8, head_size_v=4, dtype=DType.F32),
            16 * 12 * 4,
        ),
        (
            FullAttentionSpec(
                block_size=32, num_kv_heads=1, head_size=8, head_size_v=8, dtype=DType.F32
            ),
            32 * 16 * 4,
        ),
        (MLASpec(latent_size=576, dtype=DType.BF16), 16 * 576 * 2),
        (MambaSpec(state_bytes=1000), 1000),
    ],
)
def test_page_bytes(spec: KVCacheSpec, page_bytes: int) -> None:
    assert spec.page_bytes == page_bytes


def test_equal_specs_share_a_group() -> None:
    twin = FullAttentionSpec(num_kv_heads=3, head_size=64, head_size_v=64, dtype=DType.BF16)
    assert twin == FULL
    assert hash(FULL) == hash(twin)
    assert FULL != WINDOW
    assert len({FULL, twin, WINDOW}) == 2
    with pytest.raises(FrozenInstanceError):
        FULL.block_size = 8  # type: ignore[misc]


def test_pool_bytes() -> None:
    """Groups of three and two layers: three tensors, and a block id is a page of each."""
    config = KVCacheConfig(
        num_blocks=10,
        groups=(
            KVCacheGroup(layer_names=("0", "2", "4"), spec=FULL),
            KVCacheGroup(layer_names=("1", "3"), spec=WINDOW),
        ),
    )
    assert config.num_tensors == 3
    assert config.block_bytes == 3 * FULL.page_bytes
    assert config.total_bytes == 10 * 3 * FULL.page_bytes


def groups_of(*specs: KVCacheSpec) -> list[KVCacheGroup]:
    return [KVCacheGroup(layer_names=("l",), spec=spec) for spec in specs]


def test_blocks_per_request() -> None:
    full = groups_of(FULL)
    assert blocks_per_request(full, 1, num_in_flight=64) == 1
    assert blocks_per_request(full, 16, num_in_flight=64) == 1
    assert blocks_per_request(full, 17, num_in_flight=64) == 2
    latent = groups_of(MLASpec(latent_size=8, dtype=DType.F32))
    assert blocks_per_request(latent, 17, num_in_flight=64) == 2
    both = groups_of(FULL, NARROW)
    assert blocks_per_request(both, 160, num_in_flight=64) == 10 + 7
    # window 32, 64 in flight: tokens p-31 … p+63 at once, 95 tokens, over at most 7 blocks
    assert blocks_per_request(both, 1600, num_in_flight=64) == 100 + 7
    assert blocks_per_request(both, 32, num_in_flight=64) == 4
    state = groups_of(MambaSpec(state_bytes=77))
    assert blocks_per_request(state, 10_000, num_in_flight=64) == 1


@given(st.integers(0, 60), st.integers(1, 400), st.integers(1, 80))
def test_longest_request_is_the_longest_that_fits(blocks: int, limit: int, in_flight: int) -> None:
    groups = groups_of(FULL, NARROW)
    longest = longest_request(groups, blocks, limit, num_in_flight=in_flight)
    assert 0 <= longest <= limit
    if longest:
        assert blocks_per_request(groups, longest, num_in_flight=in_flight) <= blocks
    if longest < limit:
        assert blocks_per_request(groups, longest + 1, num_in_flight=in_flight) > blocks


def test_constants() -> None:
    assert (BLOCK_SIZE, NULL_BLOCK_ID) == (16, 0)
