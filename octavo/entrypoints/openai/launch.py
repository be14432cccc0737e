"""A server from its configuration: the engine started, the application built, served until the end.

Its caller has started the core's process, which loads while this is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from octavo.config.engine import EngineConfig
from octavo.entrypoints.openai.config import ServerConfig

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM
    from octavo.engine.core_launch import CoreHandle
    from octavo.entrypoints.openai.stop_signal import StopSignal


async def serve_model(
    core: CoreHandle,
    engine_config: EngineConfig,
    config: ServerConfig,
    socks: Sequence[socket.socket],
    stop: StopSignal,
) -> int:
    """Serve a model until a signal comes or the engine dies.

    Args:
        core: its process; ended here.
        socks: where to listen, one for each front end.

    Returns:
        The process's exit status.

    Raises:
        ConfigError, MemoryPlanError, ModelError: it cannot be done; the message says why.
    """
    from octavo.engine.async_llm import AsyncLLM

    stop.catch_on_loop()
    starting = asyncio.ensure_future(AsyncLLM.start(engine_config, core))
    await asyncio.sleep(0)  # the core gets its orders before the imports below
    try:
        from octavo.entrypoints.batches.service import batch_folder
        from octavo.entrypoints.openai import http_server
        from octavo.entrypoints.openai.app import build_app
        from octavo.entrypoints.openai.banner import announce, banner
        from octavo.entrypoints.openai.front_ends import FrontEnds, ledger_path
        from octavo.entrypoints.openai.keys import configured_keys
        from octavo.entrypoints.openai.ledger import Ledger
        from octavo.entrypoints.openai.reload import reload_at_hangup
        from octavo.entrypoints.openai.state import serve_engine
        from octavo.entrypoints.openai.tls import server_tls
        from octavo.entrypoints.openai.tracing import configured_tracing

        num_front_ends = config.api_server_count
        path = None if num_front_ends == 1 else ledger_path(core)
        ledger = Ledger(path, num_front_ends=num_front_ends)
        keys = configured_keys(config, engine_config.scheduler.scheduling_policy, ledger)
        tls, tracing = server_tls(config), configured_tracing(config)
        reload_at_hangup(config, keys, tls)
        engine = await _started(starting, stop)
        if engine is None:
            return 0
        config = replace(config, batch_dir=batch_folder(config, engine.config.model.model))
        server = serve_engine(engine, config, keys)
        server.tracing = tracing
        app = build_app(server)
        gc.freeze()  # what has been loaded stays: no collection looks at it again
        serve_app = partial(
            http_server.serve,
            server=server,
            sock=socks[0],
            stop=stop,
            drain_seconds=config.shutdown_timeout,
            tls=tls,
            on_ready=lambda: announce(banner(server, engine.info.memory_plan, socks[0])),
        )
        if num_front_ends == 1:
            return await serve_app(app)
        from octavo.entrypoints.openai.siblings import AnswerSiblings, PassOn

        others = FrontEnds(config, core, socks[1:])
        with contextlib.closing(others.listen()) as private:
            others.start()
            reload_at_hangup(config, keys, tls, others)
            server.siblings = others.http_addresses[1:]
            public = PassOn(app, others.http_addresses, 0, server)
            return await serve_app(public, private=(AnswerSiblings(app), private), others=others)
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if not starting.cancelled() and starting.exception() is None:
            await starting.result().shutdown()


async def _started(starting: asyncio.Future[AsyncLLM], stop: StopSignal) -> AsyncLLM | None:
    """The engine, or None if a signal came first. Raises what the start raises."""
    stopped: asyncio.Future[bool] = asyncio.ensure_future(stop.drain.wait())
    try:
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    return starting.result() if starting.done() else None
