"""The gated MLP (Shazeer, *GLU Variants Improve Transformer*, 2020)."""

from __future__ import annotations

from octavo.kernels.ops import Activation, Ops, Value
from octavo.layers.base import Module
from octavo.layers.linear import GatedLinear, RowParallelLinear

ACTIVATIONS = {
    "silu": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}
"""By their names in Hugging Face configurations."""


class GatedMLP(Module):
    """down(activation(gate(x)) * up(x))."""

    def __init__(self, gate_up_proj: GatedLinear, down_proj: RowParallelLinear) -> None:
        self.gate_up_proj = gate_up_proj
        self.down_proj = down_proj

    def __call__(self, ops: Ops, x: Value, residual: Value | None = None) -> Value:
        """x act [*, D] → [*, D] float32, added to `residual` where one is given."""
        return self.down_proj(ops, self.gate_up_proj(ops, x), residual)
