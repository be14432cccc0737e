"""The command line: `octavo`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from octavo.entrypoints import stdout
from octavo.entrypoints.cli import (
    bench,
    chat,
    collect_env,
    export,
    generate,
    models,
    pull,
    run_batch,
    serve,
)
from octavo.errors import OctavoError
from octavo.log import configure_logging, get_logger

logger = get_logger(__name__)

app = typer.Typer(
    name="octavo",
    help="An LLM inference engine: paged KV cache, continuous batching, answers that never depend "
    "on scheduling.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("generate")(generate.generate)
app.command("serve")(serve.serve)
app.command("run-batch")(run_batch.run_batch)
app.command("chat")(chat.chat)
app.command("pull")(pull.pull)
app.add_typer(models.app, name="models")
app.command("export")(export.export)
app.add_typer(bench.app, name="bench")
app.command("collect-env")(collect_env.collect_env)


def _show_version(value: bool) -> None:
    if value:
        from octavo.version import __version__

        typer.echo(f"octavo {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    configure_logging()


def run() -> None:
    """The console script. Exits with 1 and one line on stderr for what went wrong, with 2 for a
    wrong command line, with 130 after Ctrl-C."""
    try:
        try:
            app()
        finally:
            stdout.flush()
    except (OctavoError, OSError) as error:
        _fail(str(error), error)
    except MemoryError as error:
        _fail("out of memory", error)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        _fail(f"internal error: {type(error).__name__}: {error}", error)


def _fail(message: str, error: Exception) -> None:
    logger.debug("failed", exc_info=error)
    typer.echo(f"octavo: {' '.join(message.split())}", err=True)
    sys.exit(1)
