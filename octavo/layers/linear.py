"""Linear layers, named by how tensor parallelism cuts them (Shoeybi et al., *Megatron-LM*, 2019).

A column-parallel layer gives each rank some of the outputs, a row-parallel one some of the inputs,
its partial sums to be added over the ranks. `Shard()` is the whole: one rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.contracts.tensor import DType, HostTensor
from octavo.contracts.weight_format import WeightFormat
from octavo.errors import ConfigError
from octavo.kernels.ops import Activation, Backend, Ops, Value, Weight
from octavo.layers.base import PackedSlot
from octavo.quant.base import Quantization


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Part `rank` of `size` equal parts."""

    rank: int = 0
    size: int = 1

    def bounds(self, length: int) -> tuple[int, int]:
        """First and past-the-last index of this part. Raises ConfigError: unequal parts."""
        if length % self.size:
            raise ConfigError(
                f"{length} outputs or inputs cannot be cut into {self.size} equal parts"
            )
        part = length // self.size
        return self.rank * part, (self.rank + 1) * part

    def rows(self, tensor: HostTensor) -> HostTensor:
        """This part of the outermost dim."""
        return _rows(tensor, *self.bounds(tensor.shape[0]))

    def columns(self, tensor: HostTensor) -> HostTensor:
        """This part of the inner dim of a matrix."""
        if self.size == 1:
            return tensor
        start, end = self.bounds(tensor.shape[1])
        return HostTensor.of(tensor.to_float32()[:, start:end])


def _rows(tensor: HostTensor, start: int, end: int) -> HostTensor:
    return HostTensor(tensor.data[start:end], tensor.dtype, (end - start, *tensor.shape[1:]))


class ColumnParallelLinear(PackedSlot):
    """One or more linear maps of the same input, stacked along the output.

    Args:
        parts: checkpoint module → sizes of the maps that its weight holds, one after the other.
        input_size: K.
        bias: every module has one.
        gated: there are two maps, (gate, up), for `gated_linear`.
        shard: which part of every map.
    """

    def __init__(
        self,
        parts: Mapping[str, Sequence[int]],
        input_size: int,
        *,
        bias: bool = False,
        gated: bool = False,
        shard: Shard | None = None,
    ) -> None:
        shapes: dict[str, tuple[int, ...]] = {}
        for name, sizes in parts.items():
            shapes[f"{name}.weight"] = (sum(sizes), input_size)
            if bias:
                shapes[f"{name}.bias"] = (sum(sizes),)
        super().__init__(shapes)
        self._parts = dict(parts)
        self._bias = bias
        self._gated = gated
        self._shard = shard or Shard()

    def __call__(self, ops: Ops, x: Value) -> Value:
        """x act [*, K] → [*, N] float32."""
        return ops.linear(x, self.weight)

    def _format(self, stored: Sequence[DType], quantization: Quantization) -> WeightFormat | None:
        return quantization.linear_format(next(iter(self._parts)), stored)

    def _pack(
        self, tensors: Mapping[str, HostTensor], backend: Backend, quantization: Quantization
    ) -> Weight:
        parts = self._stack(tensors, "weight")
        bias = self._stack(tensors, "bias") if self._bias else None
        format = self._format([part.dtype for part in parts], quantization)
        return backend.pack_linear(parts, bias, gated=self._gated, format=format)

    def _stack(self, tensors: Mapping[str, HostTensor], kind: str) -> list[HostTensor]:
        stacked = []
        for name, sizes in self._parts.items():
            start = 0
            for size in sizes:
                segment = _rows(tensors[f"{name}.{kind}"], start, start + size)
                stacked.append(self._shard.rows(segment))
                start += size
        return stacked


class GatedLinear(ColumnParallelLinear):
    """activation(gate(x)) * up(x): the first half of a gated MLP."""

    def __init__(
        self,
        parts: Mapping[str, Sequence[int]],
        input_size: int,
        activation: Activation,
        *,
        bias: bool = False,
        shard: Shard | None = None,
    ) -> None:
        super().__init__(parts, input_size, bias=bias, gated=True, shard=shard)
        self._activation = activation

    def __call__(self, ops: Ops, x: Value) -> Value:
        """x act [*, K] → act [*, N / 2]."""
        return ops.gated_linear(x, self.weight, self._activation)


class RowParallelLinear(PackedSlot):
    """A linear map whose inputs are cut; rank 0 adds the bias.

    Args:
        name: checkpoint module.
        input_size: K, of the whole.
        output_size: N.
        bias: the module has one.
        shard: which part of the inputs.
    """

    def __init__(
        self,
        name: str,
        input_size: int,
        output_size: int,
        *,
        bias: bool = False,
        shard: Shard | None = None,
    ) -> None:
        shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (output_size, input_size)}
        if bias:
            shapes[f"{name}.bias"] = (output_size,)
        super().__init__(shapes)
        self._name = name
        self._bias = bias
        self._shard = shard or Shard()

    def __call__(self, ops: Ops, x: Value, residual: Value | None = None) -> Value:
        """x act [*, K / size] → [*, N] float32, added to `residual` where one is given."""
        if residual is None:
            return ops.linear(x, self.weight)
        return ops.linear_add(x, self.weight, residual)

    def _format(self, stored: Sequence[DType], quantization: Quantization) -> WeightFormat | None:
        return quantization.linear_format(self._name, stored)

    def _pack(
        self, tensors: Mapping[str, HostTensor], backend: Backend, quantization: Quantization
    ) -> Weight:
        weight = self._shard.columns(tensors[f"{self._name}.weight"])
        adds_bias = self._bias and self._shard.rank == 0
        bias = [tensors[f"{self._name}.bias"]] if adds_bias else None
        return backend.pack_linear(
            [weight], bias, format=self._format([weight.dtype], quantization)
        )
