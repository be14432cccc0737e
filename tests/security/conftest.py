"""Tests here may be coroutines, as those of the server."""

from tests.entrypoints.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
