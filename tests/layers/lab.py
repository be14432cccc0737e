"""Runs a forward of a few tokens of one request on the reference back end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from octavo.contracts.kv_spec import KVCacheConfig, KVCacheGroup, KVCacheSpec
from octavo.contracts.tensor import DType, HostTensor
from octavo.kernels.ops import Backend, KVCache, Ops, StepInputs, StepLimits
from octavo.kernels.torch_reference import TorchReferenceBackend
from octavo.layers.base import WeightSlot

MAX_LEN = 64


def reference() -> Backend:
    return TorchReferenceBackend(DType.F32, 1)


def fill(slot: WeightSlot, backend: Backend, seed: int = 0) -> dict[str, np.ndarray]:
    """Put random tensors into a slot. Returns them."""
    rng = np.random.default_rng(seed)
    tensors = {
        name: rng.standard_normal(shape).astype(np.float32) / 4
        for name, shape in slot.expected().items()
    }
    for name, array in tensors.items():
        slot.put(name, HostTensor.of(array), backend)
    return tensors


def allocate(backend: Backend, spec: KVCacheSpec) -> KVCache:
    """A cache with the layer "layer"."""
    group = KVCacheGroup(layer_names=("layer",), spec=spec)
    return backend.allocate_kv(KVCacheConfig(num_blocks=1 + MAX_LEN // 16, groups=(group,)))


def run(
    backend: Backend, forward: Callable[[Ops], None], inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Taps of a step whose tokens are at positions 0, 1, …; all rows are logits rows."""
    limits = StepLimits(
        max_tokens=MAX_LEN,
        max_requests=1,
        max_logit_rows=MAX_LEN,
        max_blocks_per_request=MAX_LEN // 16,
        max_position=MAX_LEN,
    )
    n = len(next(iter(inputs.values())))
    table = np.arange(1, 1 + MAX_LEN // 16, dtype=np.int32)
    positions = np.arange(n, dtype=np.int32)
    step = StepInputs(
        token_ids=positions,
        positions=positions,
        query_start=np.array([0, n], dtype=np.int32),
        seq_lens=np.array([n], dtype=np.int32),
        block_tables=[table[None]],
        slot_mapping=[positions + 16],
        logit_rows=positions,
        extra=dict(inputs),
    )
    taps = backend.capture(forward, limits).replay(step)
    return {name: np.array(backend.to_numpy(tap)) for name, tap in taps.items()}
