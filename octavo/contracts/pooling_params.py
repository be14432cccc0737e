"""What a pooling request asks for: one vector of a whole prompt (embedding, scoring)."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from octavo.contracts.checks import check_int, plain_int
from octavo.errors import RequestError, shown

PoolingType = Literal["LAST", "MEAN", "CLS"]
"""Which of the prompt's final hidden states (after the model's last norm) make the vector: the last
token's, the mean of all, the first token's."""


class PoolingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Pooling parameters of one request.

    Attributes:
        task: "embed". (vLLM's others need heads or outputs that there are not.)
        pooling_type: None: the engine's (`ModelConfig.pooling_type`).
        dimensions: keep only so many leading values, for models that were trained for it
            (Kusupati et al., *Matryoshka Representation Learning*, 2022); None is all.
        normalize: to length 1, after the cut.

    Raises:
        RequestError: a value is wrong.
    """

    task: str = "embed"
    pooling_type: PoolingType | None = None
    dimensions: int | None = None
    normalize: bool = True

    def __post_init__(self) -> None:
        self.dimensions = plain_int(self.dimensions)
        if self.task != "embed":
            raise RequestError(f"task={shown(self.task)} must be 'embed'", param="task")
        if self.pooling_type is not None and self.pooling_type not in get_args(PoolingType):
            raise RequestError(
                f"pooling_type={shown(self.pooling_type)} must be "
                f"{', '.join(get_args(PoolingType))}, or None for the engine's",
                param="pooling_type",
            )
        if self.dimensions is not None:
            check_int("dimensions", self.dimensions, 1, 2**31 - 1)
        if not isinstance(self.normalize, bool):
            raise RequestError(
                f"normalize={shown(self.normalize)} must be true or false", param="normalize"
            )

    def check_hidden_size(self, hidden_size: int) -> None:
        """Raise RequestError unless the model's vectors are long enough."""
        if self.dimensions is not None and self.dimensions > hidden_size:
            raise RequestError(
                f"dimensions={self.dimensions} must be in 1…{hidden_size}, the model's hidden size",
                param="dimensions",
            )
