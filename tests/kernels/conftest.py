"""The back end of tests that are about one alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo.contracts.tensor import DType
from octavo.kernels.cpu import CpuBackend
from tests.kernels.backends import make_backend


@pytest.fixture
def backend() -> Iterator[CpuBackend]:
    """The CPU's, in float32, with two threads."""
    backend = make_backend("cpu", DType.F32, 2)
    assert isinstance(backend, CpuBackend)
    yield backend
    backend.close()
