"""The attention layer: projections, rope, cache, attention."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.contracts.kv_spec import FullAttentionSpec, SlidingWindowSpec
from octavo.contracts.tensor import DType
from octavo.errors import KernelError
from octavo.kernels.ops import HeadShape, KVLayer, Ops, RopeTable, Value
from octavo.layers.base import Module
from octavo.layers.linear import ColumnParallelLinear, RowParallelLinear
from octavo.layers.norm import QKNorm
from octavo.layers.rope import RopeParameters


@dataclass(frozen=True)
class _Bound:
    kv: KVLayer
    rope: RopeTable | None


class Attention(Module):
    """Attention over the paged cache.

    Args:
        name: the layer's name in the KV cache.
        heads: H, Hkv, head_dim.
        qkv_proj: [(H + 2 Hkv) * head_dim, D], rows q, k, v.
        o_proj: [D, H * head_dim].
        rope: None for a layer without positions.
        qk_norm: norms of q and k, where there are any.
        scale: of the scores; None is head_dim ** -0.5.
        sliding_window: tokens seen, the current one included; None is all.
        soft_cap: c in c * tanh(score / c) (Gemma 2).
    """

    def __init__(
        self,
        name: str,
        *,
        heads: HeadShape,
        qkv_proj: ColumnParallelLinear,
        o_proj: RowParallelLinear,
        rope: RopeParameters | None,
        qk_norm: QKNorm | None = None,
        scale: float | None = None,
        sliding_window: int | None = None,
        soft_cap: float | None = None,
    ) -> None:
        self.name = name
        self.heads = heads
        self.qkv_proj = qkv_proj
        self.o_proj = o_proj
        self.rope = rope
        self.qk_norm = qk_norm
        self._scale = heads.head_dim**-0.5 if scale is None else scale
        self._sliding_window = sliding_window
        self._soft_cap = soft_cap
        self._bound: _Bound | None = None

    def kv_spec(self, dtype: DType) -> FullAttentionSpec:
        """What the layer keeps per token."""
        kept = {
            "num_kv_heads": self.heads.num_kv_heads,
            "head_size": self.heads.head_dim,
            "head_size_v": self.heads.head_dim,
        }
        if self._sliding_window is None:
            return FullAttentionSpec(**kept, dtype=dtype)
        return SlidingWindowSpec(**kept, dtype=dtype, sliding_window=self._sliding_window)

    def bind(self, kv: KVLayer, rope: RopeTable | None) -> None:
        """Take the layer's pages and the table of its `rope`."""
        self._bound = _Bound(kv, rope)

    def __call__(self, ops: Ops, x: Value, residual: Value | None = None) -> Value:
        """x act [T, D] → [T, D] float32, added to `residual` where one is given."""
        if self._bound is None:
            raise KernelError(f"{self.name} is used before bind")
        kv, rope = self._bound.kv, self._bound.rope
        norm = self.qk_norm.packed if self.qk_norm else None
        q = ops.qkv_rope_store(x, self.qkv_proj.weight, kv, self.heads, rope, norm)
        out = ops.attention(
            q,
            kv,
            self.heads,
            scale=self._scale,
            sliding_window=self._sliding_window,
            soft_cap=self._soft_cap,
        )
        return self.o_proj(ops, out, residual)
