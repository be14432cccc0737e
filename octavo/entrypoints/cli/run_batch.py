"""`octavo run-batch`."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.config.engine import EngineConfig
from octavo.entrypoints.cli.options import engine_options
from octavo.errors import ConfigError, EngineUnresponsiveError

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM
    from octavo.entrypoints.batches.local import LocalBatch

PROGRESS_SECONDS = 5.0


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

    failed = uvloop.run(_run(engine, source, target, served_model_name, max_lines_in_flight))
    if failed:
        typer.echo(f"{failed} lines have an error: see {output_file}", err=True)


async def _run(
    engine_config: EngineConfig,
    source: Path,
    target: Path,
    names: list[str] | None,
    max_lines: int,
) -> int:
    """Returns the number of lines with an error."""
    from octavo.engine.async_llm import AsyncLLM
    from octavo.entrypoints.batches.answers import LineAnswers
    from octavo.entrypoints.batches.line_runner import LineSlots
    from octavo.entrypoints.batches.local import LocalBatch
    from octavo.entrypoints.openai.config import ServerConfig
    from octavo.entrypoints.openai.state import serve_engine

    engine = await AsyncLLM.start(engine_config)
    try:
        config = ServerConfig(served_model_name=names)
        server = serve_engine(engine, config)
        slots = LineSlots(max_lines or 2 * engine.config.scheduler.max_num_seqs)
        batch = LocalBatch(LineAnswers(server), slots, config.max_request_bytes)
        telling = asyncio.ensure_future(_tell(batch))
        running = asyncio.ensure_future(batch.run(source, target))
        died = asyncio.ensure_future(_death(engine))
        try:
            await asyncio.wait((running, died), return_when=asyncio.FIRST_COMPLETED)
            (running if running.done() else died).result()
        finally:
            for task in (telling, running, died):
                task.cancel()
            await asyncio.gather(telling, running, died, return_exceptions=True)
        typer.echo(f"{batch.num_done} lines done", err=True)
        return batch.num_failed
    finally:
        await engine.shutdown()


async def _tell(batch: LocalBatch) -> None:
    """Show progress."""
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        typer.echo(f"{batch.num_done} lines done", err=True)


async def _death(engine: AsyncLLM) -> None:
    """Raises EngineDeadError when the engine dies."""
    while True:
        await asyncio.sleep(1.0)
        with contextlib.suppress(EngineUnresponsiveError):
            await engine.check_health()
