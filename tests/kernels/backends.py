"""Back ends for tests."""

from __future__ import annotations

import os
from importlib import import_module

import pytest
import torch

from octavo.contracts.tensor import DType
from octavo.kernels.ops import Backend
from octavo.kernels.registry import create_backend

torch.set_num_threads(1)

DTYPES = (DType.F32, DType.BF16)
BACKENDS = ("reference", "cpu")


def make_backend(name: str, dtype: DType, num_threads: int | None = None) -> Backend:
    """A back end, or a skip where the native module is not built (a failure under CI)."""
    if name == "cpu":
        try:
            import_module("octavo._cpu")
        except ImportError as error:
            if os.environ.get("CI"):
                pytest.fail(f"the native module must be built for the tests: {error}")
            pytest.skip(f"the native module is not built: {error}")
    return create_backend(name, dtype, num_threads)
