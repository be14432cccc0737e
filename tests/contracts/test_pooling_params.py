from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.contracts.pooling_params import PoolingParams
from octavo.errors import RequestError


def test_defaults() -> None:
    params = PoolingParams()
    assert (params.task, params.pooling_type, params.dimensions) == ("embed", None, None)
    assert params.normalize
    assert type(PoolingParams(dimensions=np.int64(3)).dimensions) is int  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task": "classify"}, "task='classify' must be 'embed'"),
        ({"pooling_type": "mean"}, "pooling_type='mean' must be LAST, MEAN, CLS, or None"),
        ({"pooling_type": 3}, "pooling_type=3 must be"),
        ({"dimensions": 0}, "dimensions=0 must be in 1"),
        ({"dimensions": True}, "dimensions=True must be an integer"),
        ({"dimensions": "64"}, "dimensions='64' must be an integer"),
        ({"normalize": 1}, "normalize=1 must be true or false"),
    ],
)
def test_wrong_values(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as raised:
        PoolingParams(**values)
    assert raised.value.param == next(iter(values))


def test_dimensions_by_model() -> None:
    PoolingParams(dimensions=8).check_hidden_size(8)
    PoolingParams().check_hidden_size(8)
    with pytest.raises(RequestError, match=r"dimensions=9 must be in 1…8, the model's hidden size"):
        PoolingParams(dimensions=9).check_hidden_size(8)
