"""How fetching tells how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional, TypeAlias

Progress: TypeAlias = Callable[[int, Optional[int]], None]  # noqa: UP045 (evaluated on 3.10)
"""Called with the bytes fetched so far and the bytes in all, None where that is not known."""
