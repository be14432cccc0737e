"""Steps and programs for tests of the CPU back end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from octavo.contracts.kv_spec import FullAttentionSpec, KVCacheConfig, KVCacheGroup
from octavo.contracts.tensor import HostTensor, bf16_to_float32, float32_to_bf16
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.ops import Backend, HeadShape, KVCache, Ops, StepInputs, StepLimits, Weight

LIMITS = StepLimits(
    max_tokens=600,
    max_requests=8,
    max_logit_rows=64,
    max_blocks_per_request=40,
    max_position=640,
)


def randn(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    values = scale * np.random.default_rng([seed, *shape]).standard_normal(shape)
    return values.astype(np.float32)


def tensor(seed: int, *shape: int, scale: float = 1.0) -> HostTensor:
    return HostTensor.of(randn(seed, *shape, scale=scale))


def bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16, as float32."""
    return bf16_to_float32(float32_to_bf16(values))


def make_step(
    queries: Sequence[tuple[int, int]],
    tables: Sequence[Sequence[int]] | None = None,
    *,
    logit_rows: Sequence[int] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    vocab: int = 50,
) -> StepInputs:
    """Requests as (first position, tokens). Their blocks are `tables`, or 1, 2, 3 … in turn."""
    num_blocks = [(start + n + 15) // 16 for start, n in queries]
    if tables is None:
        ends = np.cumsum([0, *num_blocks])
        tables = [range(1 + a, 1 + b) for a, b in pairwise(ends)]
    block_tables = np.zeros((len(queries), LIMITS.max_blocks_per_request), dtype=np.int32)
    for row, blocks in zip(block_tables, tables):
        row[: len(blocks)] = list(blocks)
    positions = [np.arange(start, start + n) for start, n in queries]
    slots = [row[p // 16] * 16 + p % 16 for row, p in zip(block_tables, positions)]
    flat = np.concatenate([*positions, np.zeros(0)]).astype(np.int32)
    starts = np.cumsum([0, *(n for _, n in queries)]).astype(np.int32)
    return StepInputs(
        token_ids=(flat * 7 % vocab).astype(np.int32),
        positions=flat,
        query_start=starts,
        seq_lens=np.array([start + n for start, n in queries], dtype=np.int32),
        block_tables=[block_tables],
        slot_mapping=[np.concatenate([*slots, np.zeros(0)]).astype(np.int32)],
        logit_rows=np.array(starts[1:] - 1 if logit_rows is None else logit_rows, dtype=np.int32),
        extra=extra or {},
    )


def run_rows(
    backend: CpuBackend, forward: Callable[[Ops], None], extra: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Capture and replay a forward that needs no more than rows, as requests of up to 600; taps as
    float32 copies."""
    rows, most = len(next(iter(extra.values()))), LIMITS.max_tokens
    graph = backend.capture(forward, replace(LIMITS, max_tokens=max(rows, most)))
    queries = [(0, min(most, rows - begin)) for begin in range(0, rows, most)]
    taps = graph.replay(make_step(queries, extra=extra))
    return {name: np.array(backend.to_numpy(tap)) for name, tap in taps.items()}


def make_cache(backend: CpuBackend, heads: HeadShape, num_blocks: int = 64) -> KVCache:
    """One layer, named "layer"."""
    spec = FullAttentionSpec(
        num_kv_heads=heads.num_kv_heads,
        head_size=heads.head_dim,
        head_size_v=heads.head_dim,
        dtype=backend.dtype,
    )
    group = KVCacheGroup(layer_names=("layer",), spec=spec)
    return backend.allocate_kv(KVCacheConfig(num_blocks=num_blocks, groups=(group,)))


def gathered(backend: Backend, table: Weight) -> np.ndarray:
    """All rows of a packed table or linear weight."""
    graph = backend.capture(lambda ops: ops.output("out", ops.embedding(table)), LIMITS)
    step = make_step([(0, table.shape[0])])
    step.token_ids = np.arange(table.shape[0], dtype=np.int32)
    return np.array(graph.replay(step)["out"])
