"""`octavo serve` around a fake engine, as a process: `python -m tests.entrypoints.cli.fake_serve`.

SIGUSR1 kills the engine. Streams take 5 ms per token.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import typer

from octavo.config.engine import EngineConfig
from octavo.engine import async_llm, core_launch
from octavo.entrypoints.cli import serve
from tests.entrypoints.openai.fake_engine import FakeEngine


async def start(config: EngineConfig, core: Any = None) -> FakeEngine:
    engine = FakeEngine(step_seconds=0.005)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, engine.die)
    return engine


if __name__ == "__main__":
    core_launch.CoreHandle = lambda **_: None  # type: ignore[assignment,misc]
    async_llm.AsyncLLM.start = start  # type: ignore[assignment,method-assign]
    app = typer.Typer(add_completion=False)
    app.command()(serve.serve)
    app()
