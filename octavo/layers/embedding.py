"""Token embedding and language-model head, which may share one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.contracts.tensor import DType, HostTensor
from octavo.contracts.weight_format import WeightFormat
from octavo.kernels.ops import Backend, Ops, Value, Weight
from octavo.layers.base import Module, PackedSlot
from octavo.quant.base import Quantization


class Embedding(PackedSlot):
    """One row per token id.

    Args:
        name: checkpoint module.
        vocab_size: rows.
        size: D.
        scale: multiplies every row (Gemma: √D).
        tied: the table is the head's weight, too.
    """

    def __init__(
        self, name: str, vocab_size: int, size: int, *, scale: float = 1.0, tied: bool = False
    ) -> None:
        super().__init__({f"{name}.weight": (vocab_size, size)})
        self._name = name
        self._scale = scale
        self._tied = tied

    def __call__(self, ops: Ops) -> Value:
        """Rows of the step's token ids: [T, D] float32."""
        return ops.embedding(self.weight, scale=self._scale)

    def _format(self, stored: Sequence[DType], quantization: Quantization) -> WeightFormat | None:
        if self._tied:
            return quantization.linear_format(self._name, stored)
        return quantization.embedding_format(stored[0])

    def _pack(
        self, tensors: Mapping[str, HostTensor], backend: Backend, quantization: Quantization
    ) -> Weight:
        (table,) = tensors.values()
        format = self._format([table.dtype], quantization)
        if self._tied:
            return backend.pack_linear([table], format=format)
        return backend.pack_embedding(table, format=format)


class LMHead(Module):
    """Logits from the last hidden states.

    Args:
        table: a linear layer [vocab, D], or the embedding where it is tied.
        scale: multiplies the logits.
        soft_cap: c in c * tanh(logits / c) (Gemma 2).
    """

    def __init__(
        self, table: PackedSlot, *, scale: float = 1.0, soft_cap: float | None = None
    ) -> None:
        self.table = table
        self._scale = scale
        self._soft_cap = soft_cap

    def __call__(self, ops: Ops, x: Value) -> Value:
        """x act [R, D], rows LOGITS → [R, vocab] float32."""
        return ops.logits(x, self.table.weight, scale=self._scale, soft_cap=self._soft_cap)

    def argmax(self, ops: Ops, x: Value) -> Value:
        """The best of the same logits: [R, 2] float32, token id and logit."""
        return ops.argmax(x, self.table.weight, scale=self._scale, soft_cap=self._soft_cap)
