"""Fetching a model while a person looks on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.config.sections import ModelConfig
from octavo.entrypoints.progress import stderr_is_terminal

if TYPE_CHECKING:
    from octavo.models.progress import Progress


def fetch_model(config: ModelConfig) -> Path:
    """Fetch a model into the cache unless it is there, with a progress bar if stderr is a terminal.
    Returns where it is.

    Raises:
        DownloadError, ConfigError: as `locate_model`.
    """
    from octavo.models.hub import locate_model

    with progress_bar(config.model) as progress:
        return locate_model(
            config.model,
            revision=config.revision,
            weights=config.load_format != "dummy",
            progress=progress,
        )


@contextmanager
def progress_bar(description: str) -> Iterator[Progress | None]:
    """Shows bytes done of all bytes; None if stderr is no terminal. It shows at the first byte."""
    if not stderr_is_terminal():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        *(BarColumn(), DownloadColumn(), TransferSpeedColumn()),
    )
    with Bar(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(description, total=None, visible=False)

        def show(num_bytes: int, total: int | None) -> None:
            bar.update(task, completed=num_bytes, total=total, visible=True)

        yield show
