"""What the cases of `op_cases` are made of."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from octavo.contracts.kv_spec import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    SlidingWindowSpec,
)
from octavo.contracts.tensor import DType, HostTensor, float32_to_bf16
from octavo.kernels.ops import (
    Backend,
    HeadShape,
    KVCache,
    KVLayer,
    Ops,
    RopeTable,
    StepLimits,
    Value,
)
from tests.kernels.blocks import random_blocks

VOCAB = 97
MAX_TOKENS = 512
MAX_LEN = 320
NUM_BLOCKS = 32
LIMITS = StepLimits(
    max_tokens=MAX_TOKENS,
    max_requests=16,
    max_logit_rows=MAX_TOKENS,
    max_blocks_per_request=MAX_LEN // 16,
    max_position=MAX_LEN,
)


class Lab:
    """What a case builds with, on one back end.

    Args:
        act_taps: activations are made by a norm, and tapped as "act"; otherwise they are taken from
            the external input "act", so that two back ends can work on the very same ones.
    """

    def __init__(self, backend: Backend, name: str, *, act_taps: bool = True) -> None:
        self.backend = backend
        self.widths: dict[str, int] = {}
        self.cache: KVCache | None = None
        self.window: int | None = None
        self._act_taps = act_taps
        self._rng = np.random.default_rng(zlib.crc32(name.encode()))

    def tensor(self, *shape: int, dtype: DType = DType.F32, mean: float = 0.0) -> HostTensor:
        """Random values: the same for the same case, in the same order of calls."""
        scale = shape[-1] ** -0.5 if len(shape) == 2 else 0.3
        values = (mean + scale * self._rng.standard_normal(shape)).astype(np.float32)
        if dtype is DType.BF16:
            return HostTensor(float32_to_bf16(values), dtype, shape)
        if dtype is DType.F16:
            return HostTensor.of(values.astype(np.float16))
        if dtype.is_block_format:
            return random_blocks(self._rng, dtype, *shape)
        return HostTensor.of(values)

    def rows(self, ops: Ops, name: str, width: int) -> Value:
        """External rows [T, width] float32."""
        self.widths[name] = width
        return ops.input(name, width)

    def act(self, ops: Ops, width: int) -> Value:
        """An activation [T, width] of the external rows "x"."""
        if not self._act_taps:
            self.widths["act"] = width
            return ops.input("act", width, self.backend.dtype)
        unit = self.backend.pack_vector(HostTensor.of(np.ones(width, dtype=np.float32)))
        act = ops.rms_norm(self.rows(ops, "x", width), unit, eps=1e-6)
        ops.output("act", act)
        return act

    def kv(self, heads: HeadShape, window: int | None = None) -> KVLayer:
        """The only layer of a new cache."""
        kept = {
            "num_kv_heads": heads.num_kv_heads,
            "head_size": heads.head_dim,
            "head_size_v": heads.head_dim,
            "dtype": self.backend.dtype,
        }
        self.window = window
        spec = (
            FullAttentionSpec(**kept)
            if window is None
            else SlidingWindowSpec(**kept, sliding_window=window)
        )
        group = KVCacheGroup(layer_names=("layer",), spec=spec)
        self.cache = self.backend.allocate_kv(KVCacheConfig(num_blocks=NUM_BLOCKS, groups=(group,)))
        return self.cache.layer("layer")

    def rope(self, rotary_dim: int, *, interleaved: bool = False) -> RopeTable:
        angles = np.outer(np.arange(MAX_LEN), 100.0 ** -(np.arange(0, rotary_dim, 2) / rotary_dim))
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        return self.backend.pack_rope(cos, sin, interleaved=interleaved)


Forward = Callable[[Ops], None]


@dataclass(frozen=True)
class OpCase:
    """`build` makes weights on a back end and returns a forward; `lengths` are the requests'."""

    op: str
    variant: str
    build: Callable[[Lab], Forward]
    lengths: tuple[int, ...] = (1, 3, 17, 40)

    @property
    def name(self) -> str:
        return f"{self.op}-{self.variant}"
