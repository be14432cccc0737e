"""RMS norms (Zhang and Sennrich, *Root Mean Square Layer Normalization*, 2019)."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.contracts.tensor import HostTensor
from octavo.kernels.ops import Backend, HeadNorm, Ops, Value, Weight
from octavo.layers.base import Module, PackedSlot
from octavo.quant.base import Quantization


class RMSNorm(PackedSlot):
    """x / rms(x) * (weight + offset).

    Args:
        name: checkpoint module.
        size: D.
        eps: added to the mean square.
        offset: added to the weight (Gemma: 1).
    """

    def __init__(self, name: str, size: int, eps: float, *, offset: float = 0.0) -> None:
        super().__init__({f"{name}.weight": (size,)})
        self.eps = eps
        self.offset = offset

    def __call__(self, ops: Ops, x: Value) -> Value:
        """x [*, D] float32 → act."""
        return ops.rms_norm(x, self.weight, eps=self.eps, offset=self.offset)

    def add(self, ops: Ops, x: Value, residual: Value) -> Value:
        """residual + norm(x) → [*, D] float32: a norm after the sublayer."""
        return ops.rms_norm_add(x, self.weight, residual, eps=self.eps, offset=self.offset)

    def _pack(
        self, tensors: Mapping[str, HostTensor], backend: Backend, quantization: Quantization
    ) -> Weight:
        (vector,) = tensors.values()
        return backend.pack_vector(vector)


class QKNorm(Module):
    """Norms over each head of q and of k, before rope (Qwen3, Gemma 3)."""

    def __init__(self, q_norm: RMSNorm, k_norm: RMSNorm) -> None:
        self.q_norm = q_norm
        self.k_norm = k_norm

    @property
    def packed(self) -> HeadNorm:
        """As `qkv_rope_store` takes it."""
        return HeadNorm(
            q=self.q_norm.weight,
            k=self.k_norm.weight,
            eps=self.q_norm.eps,
            offset=self.q_norm.offset,
        )
