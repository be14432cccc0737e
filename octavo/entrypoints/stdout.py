"""Standard output that cannot be written to: a full disk, a closed pipe."""

from __future__ import annotations

import os
import sys


def print_now(text: str) -> None:
    """Print, and write it out. Raises OSError; from then on nothing more is written."""
    try:
        print(text, flush=True)
    except OSError:
        _discard()
        raise


def flush() -> None:
    """Write out what is buffered: that it cannot be must not show only at exit, where it could no
    longer be told. Raises OSError, as `print_now`."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        _discard()
        raise


def _discard() -> None:
    """What is still buffered goes nowhere, and so does what comes."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
