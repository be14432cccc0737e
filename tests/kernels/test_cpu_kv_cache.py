"""The CPU back end's KV cache: where its pages are."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.contracts.kv_spec import (
    BlockCopy,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    MambaSpec,
)
from octavo.errors import KernelError
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.ops import HeadShape, Ops
from tests.kernels.cpu_steps import LIMITS, make_cache, make_step, randn, tensor


def test_blocks_of_any_run_are_alike(backend: CpuBackend) -> None:
    """Pages of 64 KB, of which four neighbours lie together per layer (kv_cache.h): where a
    request's blocks are does not matter, and copies and clears find them in every layer."""
    heads = HeadShape(num_heads=2, num_kv_heads=2, head_dim=256)
    spec = FullAttentionSpec(num_kv_heads=2, head_size=256, head_size_v=256, dtype=backend.dtype)
    group = KVCacheGroup(layer_names=("first", "second"), spec=spec)
    assert spec.page_bytes == 1 << 16
    cache = backend.allocate_kv(KVCacheConfig(num_blocks=42, groups=(group,)))
    weights = {
        name: backend.pack_linear([tensor(i, 1536, 16)]) for i, name in enumerate(group.layer_names)
    }

    def forward(ops: Ops) -> None:
        x = ops.input("x", 16)
        for name, weight in weights.items():
            kv = cache.layer(name)
            q = ops.qkv_rope_store(x, weight, kv, heads, None)
            ops.output(name, ops.attention(q, kv, heads, scale=0.1))

    graph = backend.capture(forward, LIMITS)

    def outputs(start: int, n: int, blocks: list[int]) -> np.ndarray:
        x = randn(7, 120, 16)[start : start + n]
        taps = graph.replay(make_step([(start, n)], [blocks], extra={"x": x}))
        return np.stack([taps[name] for name in weights])

    in_order, scattered, copied = (
        [1, 2, 3, 4, 5, 6, 7],
        [41, 9, 30, 12, 8, 33, 20],
        [*range(34, 41)],
    )
    assert np.array_equal(outputs(0, 100, in_order), outputs(0, 100, scattered))
    cache.copy_blocks([BlockCopy(src=a, dst=b) for a, b in zip(scattered, copied)])
    after = outputs(100, 1, in_order)
    assert np.array_equal(outputs(100, 1, copied), after)
    cache.clear_blocks([copied[2]])
    assert np.array_equal(outputs(100, 1, scattered), after)
    assert (outputs(100, 1, copied) != after).any(axis=(1, 2)).all()


def test_the_kv_cache_refuses_foreign_blocks_and_layers(backend: CpuBackend) -> None:
    cache = make_cache(backend, HeadShape(num_heads=4, num_kv_heads=2, head_dim=8), num_blocks=8)
    for block in (-1, 0, 8):
        with pytest.raises(KernelError, match="block id"):
            cache.clear_blocks([1, block])
        with pytest.raises(KernelError, match="block id"):
            cache.copy_blocks([BlockCopy(src=1, dst=block)])
    with pytest.raises(KernelError, match="layer"):
        cache.layer("other")
    group = KVCacheGroup(layer_names=("m",), spec=MambaSpec(state_bytes=64))
    with pytest.raises(KernelError, match="MambaSpec"):
        backend.allocate_kv(KVCacheConfig(num_blocks=8, groups=(group,)))
