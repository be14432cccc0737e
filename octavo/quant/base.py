"""Which format each linear weight of a model is kept in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from octavo.contracts.tensor import DType
from octavo.contracts.weight_format import WeightFormat


class Quantization(ABC):
    """Chooses formats while a checkpoint is loaded. `None` is always the engine's own dtype.

    Attributes:
        name: as in the configuration.
    """

    name: str

    @abstractmethod
    def linear_format(self, name: str, stored: Sequence[DType]) -> WeightFormat | None:
        """Of a linear weight.

        Args:
            name: the checkpoint's, of its first part: "model.layers.0.mlp.down_proj".
            stored: what each part is stored in, of those stacked along the outputs.
        """

    @abstractmethod
    def embedding_format(self, stored: DType) -> WeightFormat | None:
        """Of a table that is only gathered from."""


class Unquantized(Quantization):
    """Everything in the engine's dtype."""

    name = "none"

    def linear_format(self, name: str, stored: Sequence[DType]) -> WeightFormat | None:
        return None

    def embedding_format(self, stored: DType) -> WeightFormat | None:
        return None


UNQUANTIZED = Unquantized()
