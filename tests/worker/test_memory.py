from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.sections import CacheConfig
from octavo.contracts.kv_spec import FullAttentionSpec
from octavo.contracts.tensor import DType
from octavo.errors import ConfigError, MemoryPlanError
from octavo.worker.kv_planner import group_layers
from octavo.worker.memory import (
    MemoryNeeds,
    check_weights_fit,
    format_plan,
    human,
    plan_memory,
)

MIB = 2**20
# Two layers of 512 KiB per block: a block id stands for 1 MiB.
SPEC = FullAttentionSpec(num_kv_heads=64, head_size=64, head_size_v=64, dtype=DType.F32)
NEEDS = MemoryNeeds(
    available=1000 * MIB,
    weights=100 * MIB,
    activations=50 * MIB,
    groups=group_layers({"a": SPEC, "b": SPEC}),
    max_num_seqs=4,
    max_model_len=1000,  # 63 blocks
    is_max_model_len_given=False,
    tokens_in_flight=64,
)
DEFAULT = CacheConfig()


def test_the_cache_takes_no_more_than_all_requests_can_hold() -> None:
    plan = plan_memory(NEEDS, DEFAULT)
    assert plan.num_blocks == 4 * 63 + 1
    assert plan.kv_cache == 253 * MIB
    assert plan.max_model_len == 1000
    assert (plan.available, plan.weights, plan.activations) == (1000 * MIB, 100 * MIB, 50 * MIB)
    assert not plan.notes


def test_the_cache_takes_what_the_share_leaves() -> None:
    plan = plan_memory(replace(NEEDS, max_num_seqs=64), DEFAULT)
    assert plan.num_blocks == 500 - 150
    plan = plan_memory(replace(NEEDS, max_num_seqs=64), CacheConfig(gpu_memory_utilization=0.9))
    assert plan.num_blocks == 900 - 150


def test_max_model_len_is_lowered_to_what_fits_if_nobody_asked_for_it() -> None:
    plan = plan_memory(replace(NEEDS, available=400 * MIB), DEFAULT)
    assert plan.num_blocks == 50
    assert plan.max_model_len == 49 * 16
    assert plan.notes == (
        "max_model_len lowered from 1000 to 784: the 49 KV blocks that fit hold no longer request",
    )


def test_max_model_len_that_was_asked_for_is_refused_with_what_would_fit() -> None:
    needs = replace(NEEDS, available=400 * MIB, is_max_model_len_given=True)
    with pytest.raises(MemoryPlanError) as error:
        plan_memory(needs, DEFAULT)
    assert str(error.value) == (
        "max_model_len=1000 needs 64 KV blocks (64.0 MiB) for one request, but 50 (50.0 MiB) fit: "
        "400.0 MiB are free, 200.0 MiB of them for the engine (share 0.5); weights take 100.0 MiB, "
        "activations 50.0 MiB. To make it fit, lower max_model_len to at most 784 or raise "
        "gpu_memory_utilization to at least 0.54"
    )
    # What the message says is true, and tight.
    fits = replace(needs, max_model_len=784)
    assert plan_memory(fits, DEFAULT).max_model_len == 784
    with pytest.raises(MemoryPlanError):
        plan_memory(replace(needs, max_model_len=785), DEFAULT)
    plan_memory(needs, CacheConfig(gpu_memory_utilization=0.54))
    with pytest.raises(MemoryPlanError):
        plan_memory(needs, CacheConfig(gpu_memory_utilization=0.53))


def test_nothing_fits_beside_the_weights() -> None:
    with pytest.raises(MemoryPlanError) as error:
        plan_memory(replace(NEEDS, available=150 * MIB), DEFAULT)
    assert str(error.value) == (
        "max_model_len=1000 needs 64 KV blocks (64.0 MiB) for one request, but 0 (0 B) fit: "
        "150.0 MiB are free, 75.0 MiB of them for the engine (share 0.5); weights take 100.0 MiB, "
        "activations 50.0 MiB. To make it fit, lower max_num_batched_tokens or max_num_seqs, or "
        "use a smaller model"
    )


@pytest.mark.parametrize(
    "cache",
    [CacheConfig(num_gpu_blocks_override=80), CacheConfig(kv_cache_memory_bytes=80 * MIB + 5)],
)
def test_an_explicit_size_is_taken(cache: CacheConfig) -> None:
    plan = plan_memory(NEEDS, cache)
    assert plan.num_blocks == 80
    assert plan.kv_cache == 80 * MIB


def test_an_explicit_size_may_use_all_that_is_free_but_for_a_given_share() -> None:
    cache = CacheConfig(num_gpu_blocks_override=850)
    assert plan_memory(NEEDS, cache).num_blocks == 850
    with pytest.raises(MemoryPlanError) as error:
        plan_memory(NEEDS, replace(cache, num_gpu_blocks_override=851))
    assert str(error.value) == (
        "num_gpu_blocks_override=851 asks for 851.0 MiB of KV cache, but 850.0 MiB (850 blocks) "
        "fit: 1000.0 MiB are free; weights take 100.0 MiB, activations 50.0 MiB"
    )
    with pytest.raises(MemoryPlanError, match=r"share 0\.8"):
        plan_memory(NEEDS, replace(cache, gpu_memory_utilization=0.8))


@pytest.mark.parametrize(
    ("cache", "remedy"),
    [
        (CacheConfig(num_gpu_blocks_override=10), "raise num_gpu_blocks_override to at least 64"),
        (
            CacheConfig(kv_cache_memory_bytes=10 * MIB),
            f"raise kv_cache_memory_bytes to at least {64 * MIB}",
        ),
    ],
)
def test_an_explicit_size_too_small(cache: CacheConfig, remedy: str) -> None:
    assert plan_memory(NEEDS, cache).max_model_len == 9 * 16
    given = replace(NEEDS, is_max_model_len_given=True)
    with pytest.raises(MemoryPlanError) as error:
        plan_memory(given, cache)
    assert str(error.value).endswith(f"lower max_model_len to at most 144 or {remedy}")


def test_two_sizes_contradict() -> None:
    with pytest.raises(ConfigError, match="give one of them"):
        plan_memory(NEEDS, CacheConfig(num_gpu_blocks_override=10, kv_cache_memory_bytes=MIB))


@given(
    available=st.integers(0, 3000),
    share=st.none() | st.floats(0.01, 1),
    max_num_seqs=st.integers(1, 64),
    given_length=st.booleans(),
)
def test_every_plan_fits(available, share, max_num_seqs, given_length) -> None:
    needs = replace(
        NEEDS,
        available=available * MIB,
        max_num_seqs=max_num_seqs,
        is_max_model_len_given=given_length,
    )
    try:
        plan = plan_memory(needs, CacheConfig(gpu_memory_utilization=share))
    except MemoryPlanError:
        return
    assert plan.weights + plan.activations + plan.kv_cache <= (share or 0.5) * available * MIB
    assert needs.blocks(plan.max_model_len) <= plan.num_blocks - 1
    assert plan.max_model_len == 1000 or not given_length


def test_weights_larger_than_memory_are_refused_before_loading() -> None:
    check_weights_fit(5 * MIB, 5 * MIB)
    with pytest.raises(MemoryPlanError) as error:
        check_weights_fit(14 * 2**30, 3 * 2**30)
    assert str(error.value) == (
        "the model's weights take 14.0 GiB, but only 3.0 GiB are free; "
        "use a smaller model or dtype, or free some memory"
    )


def test_format_plan() -> None:
    plan = plan_memory(replace(NEEDS, available=400 * MIB), DEFAULT)
    assert format_plan(plan).splitlines() == [
        "memory plan",
        "  free at start   400.0 MiB",
        "  weights         100.0 MiB",
        "  activations      50.0 MiB",
        "  KV cache         50.0 MiB  50 blocks",
        "  left            200.0 MiB",
        "  max_num_seqs 4, max_model_len 784",
        "  note: max_model_len lowered from 1000 to 784: the 49 KV blocks that fit hold no longer "
        "request",
    ]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**40 * 3, "3.0 TiB"), (-2048, "-2.0 KiB")],
)
def test_human(size: int, text: str) -> None:
    assert human(size) == text
