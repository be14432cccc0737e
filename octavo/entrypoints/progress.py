"""Progress on a terminal; silent anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_SECONDS_BETWEEN_REFRESHES = 0.1


class GenerationProgress:
    """How many requests are done, and how many tokens per second come out."""

    def __init__(self, bar: Progress, num_requests: int) -> None:
        self._bar = bar
        self._task = bar.add_task("generating", total=num_requests, rate="")
        self._start = self._refreshed = time.monotonic()

    def update(self, num_done: int, num_tokens: int) -> None:
        """Show totals so far. Cheap when called often."""
        now = time.monotonic()
        if now - self._refreshed < _SECONDS_BETWEEN_REFRESHES:
            return
        self._refreshed = now
        rate = f"{num_tokens / (now - self._start):.0f} tokens/s"
        self._bar.update(self._task, completed=num_done, rate=rate)
        self._bar.refresh()


class NoProgress:
    """Where nobody looks."""

    def update(self, num_done: int, num_tokens: int) -> None:
        """Nothing."""


def stderr_is_terminal() -> bool:
    """False, too, where stderr is closed, absent, or replaced by something that is no file."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


@contextmanager
def generation_progress(
    num_requests: int, *, enabled: bool
) -> Iterator[GenerationProgress | NoProgress]:
    """A progress line on stderr, if that is a terminal. It is redrawn by `update` only: no thread
    competes with the engine for a core."""
    if not enabled or not stderr_is_terminal():
        yield NoProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        yield GenerationProgress(bar, num_requests)
