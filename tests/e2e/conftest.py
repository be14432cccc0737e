"""Settings for the tests of the whole engine."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _check_integrity(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's invariants are checked after every step."""
    monkeypatch.setenv("OCTAVO_CHECK", "1")
