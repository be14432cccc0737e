"""Back ends whose sampling ops the stages run on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo.contracts.tensor import DType
from octavo.kernels.ops import Backend
from octavo.kernels.registry import create_backend


@pytest.fixture(scope="session", params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made = create_backend(request.param, DType.F32, num_threads=1)
    yield made
    made.close()
