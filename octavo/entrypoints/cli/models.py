"""`octavo models`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.models.cache import CachedModel

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

_NAME_HELP = "As `octavo models` lists it."


@app.callback()
def models(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List, locate and remove fetched models.

    Without a command: the models that have a short name, and whatever else was fetched. Models of
    the Hugging Face hub are in the hub's own cache (`hf cache ls`).
    """
    if context.invoked_subcommand is not None:
        if as_json:
            raise ConfigError("--json is for the list; leave the command out")
        return
    from octavo.models.cache import list_models

    found = list_models()
    if as_json:
        typer.echo(json.dumps([_as_json(m) for m in found], indent=2))
    else:
        _print_table(found)


@app.command("path")
def path(name: Annotated[str, typer.Argument(metavar="NAME", help=_NAME_HELP)]) -> None:
    """Print where a model is."""
    from octavo.models.cache import find_model

    typer.echo(find_model(name).path)


@app.command("rm")
def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help=_NAME_HELP)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove models from the cache."""
    from octavo.models.cache import find_model, remove_model
    from octavo.worker.memory import human

    found = [find_model(name) for name in dict.fromkeys(names)]
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("nobody is there to be asked; say --yes to remove without asking")
        size = human(sum(m.num_bytes for m in found))
        listed = ", ".join(m.name for m in found)
        if not typer.confirm(f"Remove {listed} ({size})?", err=True):
            typer.echo("octavo: nothing was removed", err=True)
            raise typer.Exit(1)
    for model in found:
        remove_model(model)
        typer.echo(f"removed {model.path} ({human(model.num_bytes)})")


def _as_json(model: CachedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "source": model.source,
        "pulled": model.is_here,
        "size": model.num_bytes if model.is_here else None,
        "download_size": model.download_bytes,
        "path": str(model.path),
    }


def _print_table(models: list[CachedModel]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("NAME", "SIZE", "SOURCE", "WHERE"):
        table.add_column(title, justify="right" if title == "SIZE" else "left", overflow="fold")
    for m in models:
        where = str(m.path) if m.is_here else f"not here: octavo pull {m.name}"
        style = "" if m.is_here else "dim"
        table.add_row(*(Text(t, style) for t in (m.name, _size(m), m.source, where)))
    console = Console(soft_wrap=False)
    if not console.is_terminal:
        console.width = 10_000  # a pipe has no width: one line per model
    console.print(table)


def _size(model: CachedModel) -> str:
    from octavo.worker.memory import human

    if model.is_here:
        return human(model.num_bytes)
    return "?" if model.download_bytes is None else f"({human(model.download_bytes)})"
