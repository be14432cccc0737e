"""Fetching a model while a person looks on."""

from __future__ import annotations

import sys
from pathlib import Path

from octavo.config.sections import ModelConfig


def fetch_model(config: ModelConfig) -> Path:
    """Fetch a model into the cache unless it is there, with a progress bar if stderr is a terminal.
    Returns where it is.

    Raises:
        DownloadError, ConfigError: as `locate_model`.
    """
    from octavo.models.hub import locate_model

    weights = config.load_format != "dummy"
    if not sys.stderr.isatty():
        return locate_model(config.model, revision=config.revision, weights=weights)
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        *(BarColumn(), DownloadColumn(), TransferSpeedColumn()),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(config.model, total=None, visible=False)

        def show(num_bytes: int, total: int | None) -> None:
            bar.update(task, completed=num_bytes, total=total, visible=True)

        return locate_model(config.model, revision=config.revision, weights=weights, progress=show)
