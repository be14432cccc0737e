"""Logging: one namespace, no handlers unless an entry point asks for them, never prompt text."""

from __future__ import annotations

import logging
import os
import sys


def get_logger(name: str) -> logging.Logger:
    """The logger of a module; `name` is its `__name__`."""
    return logging.getLogger(name)


def configure_logging(level: str | None = None) -> None:
    """Send Octavo's log to stderr. `level` overrides OCTAVO_LOG_LEVEL (default WARNING)."""
    root = logging.getLogger("octavo")
    root.setLevel((level or os.environ.get("OCTAVO_LOG_LEVEL", "WARNING")).upper())
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname).1s %(asctime)s %(name)s: %(message)s"))
        root.addHandler(handler)
