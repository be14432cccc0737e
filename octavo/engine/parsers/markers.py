"""Markers in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Iterable


def first_marker(text: str, markers: Iterable[str]) -> tuple[int, str]:
    """Position and spelling of the marker that comes first; (-1, "") without one."""
    found = [(at, -len(m), m) for m in markers if (at := text.find(m)) >= 0]
    at, _, marker = min(found, default=(-1, 0, ""))
    return at, marker


def num_uncertain(text: str, markers: Iterable[str]) -> int:
    """Characters at the end of the text that may be the beginning of a marker."""
    longest = 0
    for marker in markers:
        for length in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:length]):
                longest = length
                break
    return longest
