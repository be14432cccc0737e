"""Ctrl-C between two steps instead of within one, so that the engine stays usable."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], None]]:
    """Hold back the first SIGINT of the block; the function given raises KeyboardInterrupt if one
    came. A second one is not held back. Does nothing outside the main thread, or where somebody
    else handles SIGINT.
    """
    handler = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or handler is not signal.default_int_handler:
        yield lambda: None
        return
    received: list[int] = []

    def hold(signum: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(signum)

    def check() -> None:
        if received:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, hold)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, handler)
