"""`octavo run-batch`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from octavo.config.engine import EngineConfig
from octavo.entrypoints.cli.options import engine_options
from octavo.errors import ConfigError


@engine_options
def run_batch(
    input_file: Annotated[
        str,
        typer.Option("--input-file", "-i", metavar="FILE", help="The requests: JSON lines."),
    ],
    output_file: Annotated[
        str, typer.Option("--output-file", "-o", metavar="FILE", help="Where the results go.")
    ],
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="Name of the model in the requests; may be repeated."),
    ] = None,
    max_lines_in_flight: Annotated[
        int, typer.Option(help="Most lines at once; 0: twice --max-num-seqs.")
    ] = 0,
    *,
    engine: EngineConfig,
) -> None:
    """Answer a file of requests without a server.

    Killed or interrupted, it goes on where it was when it is started again.
    """
    if max_lines_in_flight < 0:
        raise ConfigError(f"max_lines_in_flight={max_lines_in_flight} must be at least 0")
    source, target = Path(input_file), Path(output_file)
    if not source.is_file():
        raise ConfigError(f"there is no file {input_file!r}; --input-file takes a path, not a URL")
    if target.is_dir() or not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise ConfigError(f"{output_file!r} cannot be written; give a file in a folder that can")
    import uvloop

    from octavo.entrypoints.batches.launch import run_file

    failed = uvloop.run(run_file(engine, source, target, served_model_name, max_lines_in_flight))
    if failed:
        typer.echo(f"{failed} lines have an error: see {output_file}", err=True)
