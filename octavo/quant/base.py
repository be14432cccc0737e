"""Which format each linear weight of a model is kept in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from octavo.contracts.tensor import DType, HostTensor
from octavo.contracts.weight_format import WeightFormat


class Quantization(ABC):
    """Chooses formats while a checkpoint is loaded. `None` is always the engine's own dtype.

    Attributes:
        name: as in the configuration.
    """

    name: str

    @abstractmethod
    def linear_format(self, name: str, parts: Sequence[HostTensor]) -> WeightFormat | None:
        """Of a linear weight.

        Args:
            name: the checkpoint's, of its first part: "model.layers.0.mlp.down_proj".
            parts: [n_i, K], stacked along the outputs.
        """

    @abstractmethod
    def embedding_format(self, table: HostTensor) -> WeightFormat | None:
        """Of a table that is only gathered from."""

    @abstractmethod
    def bytes_per_weight(self, checkpoint: DType, dtype: DType) -> float:
        """About what an element of a matrix takes; for a check before anything is loaded.

        Args:
            checkpoint: what most elements are stored in.
            dtype: the engine's.
        """


class Unquantized(Quantization):
    """Everything in the engine's dtype."""

    name = "none"

    def linear_format(self, name: str, parts: Sequence[HostTensor]) -> WeightFormat | None:
        return None

    def embedding_format(self, table: HostTensor) -> WeightFormat | None:
        return None

    def bytes_per_weight(self, checkpoint: DType, dtype: DType) -> float:
        return dtype.itemsize


UNQUANTIZED = Unquantized()
