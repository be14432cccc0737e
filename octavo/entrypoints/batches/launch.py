"""`octavo run-batch`, once its options are known."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from octavo.config.engine import EngineConfig
from octavo.engine.async_llm import AsyncLLM
from octavo.entrypoints.batches.answers import LineAnswers
from octavo.entrypoints.batches.line_runner import LineSlots
from octavo.entrypoints.batches.local import LocalBatch
from octavo.entrypoints.openai.config import ServerConfig
from octavo.entrypoints.openai.state import serve_engine
from octavo.errors import EngineUnresponsiveError

PROGRESS_SECONDS = 5.0


async def run_file(
    engine_config: EngineConfig,
    source: Path,
    target: Path,
    names: list[str] | None,
    max_lines: int,
) -> int:
    """Run a file's lines with an engine of their own, showing progress on stderr.

    Args:
        names: of the model in the requests; None: as the configuration gives it.
        max_lines: at once; 0: twice `max_num_seqs`.

    Returns:
        The number of lines with an error.

    Raises:
        OctavoError, OSError: it cannot be done.
    """
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
        print(f"{batch.num_done} lines done", file=sys.stderr)
        return batch.num_failed
    finally:
        await engine.shutdown()


async def _tell(batch: LocalBatch) -> None:
    """Show progress."""
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        print(f"{batch.num_done} lines done", file=sys.stderr)


async def _death(engine: AsyncLLM) -> None:
    """Raises EngineDeadError when the engine dies."""
    while True:
        await asyncio.sleep(1.0)
        with contextlib.suppress(EngineUnresponsiveError):
            await engine.check_health()
