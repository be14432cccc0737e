"""SIGTERM and SIGINT as something to wait for, from the first moment of `octavo serve` on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """The first signal asks to drain, the second to hurry.

    Attributes:
        drain, hurry: set by the signals.
    """

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.hurry = asyncio.Event()

    def request(self) -> None:
        """As if a signal came."""
        (self.hurry if self.drain.is_set() else self.drain).set()

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Take the signals where no event loop does: they are noted, and seen once one runs."""
        before = [signal.signal(number, lambda *_: self.request()) for number in _SIGNALS]
        try:
            yield
        finally:
            for number, handler in zip(_SIGNALS, before):
                signal.signal(number, handler)

    def catch_on_loop(self) -> None:
        """Take the signals on the running loop, from now on."""
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self.request)
