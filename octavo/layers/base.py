"""What layers are made of: weight slots that a checkpoint fills, and modules that hold them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from octavo.contracts.tensor import DType, HostTensor
from octavo.contracts.weight_format import WeightFormat
from octavo.errors import WeightsError
from octavo.kernels.ops import Backend, Weight
from octavo.quant.base import UNQUANTIZED, Quantization

T = TypeVar("T")


class WeightSlot(ABC):
    """A place that one or more checkpoint tensors fill: it packs itself when the last arrives."""

    @abstractmethod
    def expected(self) -> Mapping[str, tuple[int, ...]]:
        """Checkpoint tensor name → shape of all that it needs."""

    @abstractmethod
    def put(
        self,
        name: str,
        tensor: HostTensor,
        backend: Backend,
        quantization: Quantization = UNQUANTIZED,
    ) -> int:
        """Take one tensor. Returns the bytes packed by this call (0 until complete)."""

    @abstractmethod
    def estimated_bytes(self, stored: DType, dtype: DType, quantization: Quantization) -> int:
        """About what it will take, padding left out; for a check before anything is loaded.

        Args:
            stored: what the checkpoint's matrices are stored in.
            dtype: the engine's.
        """


class PackedSlot(WeightSlot):
    """A slot that becomes one packed weight.

    Args:
        shapes: checkpoint tensor name → shape.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = dict(shapes)
        self._waiting: dict[str, HostTensor] = {}
        self._weight: Weight | None = None

    def expected(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def put(
        self,
        name: str,
        tensor: HostTensor,
        backend: Backend,
        quantization: Quantization = UNQUANTIZED,
    ) -> int:
        self._waiting[name] = tensor
        if len(self._waiting) < len(self._shapes):
            return 0
        self._weight = self._pack(self._waiting, backend, quantization)
        self._waiting = {}
        return self._weight.nbytes

    def estimated_bytes(self, stored: DType, dtype: DType, quantization: Quantization) -> int:
        format = self._format([stored], quantization)
        itemsize = dtype.itemsize if format is None else format.bytes_per_weight
        return int(itemsize * sum(math.prod(shape) for shape in self._shapes.values()))

    @property
    def weight(self) -> Weight:
        """The packed weight. Raises WeightsError before it is complete."""
        if self._weight is None:
            raise WeightsError(f"{', '.join(self._shapes)} used before it was loaded")
        return self._weight

    def _format(self, stored: Sequence[DType], quantization: Quantization) -> WeightFormat | None:
        """How the weight is kept, its parts being stored in these. None: in the engine's dtype."""
        return None

    @abstractmethod
    def _pack(
        self, tensors: Mapping[str, HostTensor], backend: Backend, quantization: Quantization
    ) -> Weight:
        """Pack the complete set, by checkpoint name."""


class Module:
    """Holds slots and other modules as attributes (or in lists), in checkpoint order."""

    def find(self, kind: type[T]) -> list[T]:
        """All parts of a kind, depth first in order of definition, each once."""
        found: dict[int, T] = {}
        for part in _parts(self):
            if isinstance(part, kind):
                found.setdefault(id(part), part)
        return list(found.values())


def _parts(module: Module) -> Iterator[Any]:
    for value in vars(module).values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, (Module, WeightSlot)):
                yield part
            if isinstance(part, Module):
                yield from _parts(part)
