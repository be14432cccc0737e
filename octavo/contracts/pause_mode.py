"""What a pause does with requests that have begun. The names are vLLM's."""

from __future__ import annotations

from typing import Literal

PauseMode = Literal["abort", "wait", "keep"]
"""They are aborted; they go on to their end; they stay as they are, and go on when resumed."""
