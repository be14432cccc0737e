"""`octavo serve`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import json
import os
import shlex
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.config.engine import EngineConfig
from octavo.entrypoints.cli.options import config_options, engine_options
from octavo.entrypoints.openai.config import ServerConfig
from octavo.env import api_keys
from octavo.log import LOG_FORMAT_VARIABLE, configure_logging, get_logger

if TYPE_CHECKING:
    from octavo.contracts.kv_spec import MemoryPlan
    from octavo.engine.async_llm import AsyncLLM
    from octavo.engine.core_launch import CoreHandle
    from octavo.entrypoints.openai.state import Server
    from octavo.entrypoints.openai.stop_signal import StopSignal

logger = get_logger(__name__)


@engine_options
@config_options("server", ServerConfig, "Server")
def serve(
    model_name: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="The model; the same as --model."),
    ] = None,
    *,
    server: ServerConfig,
    engine: EngineConfig,
) -> None:
    """Serve a model over the OpenAI API."""
    from octavo.engine.core_launch import CoreHandle
    from octavo.entrypoints.openai.sockets import bind, share
    from octavo.entrypoints.openai.stop_signal import StopSignal

    stop = StopSignal()
    configure_logging(server.log_level, server.log_format)
    os.environ[LOG_FORMAT_VARIABLE] = server.log_format  # the engine core's log is the same
    server = replace(server, api_key=[*(server.api_key or ()), *api_keys()])
    if model_name is not None:
        engine = replace(engine, model=replace(engine.model, model=model_name)).checked()
    _warn_if_open(server)
    with stop.caught(), contextlib.ExitStack() as stack:
        socks = share(bind(server.host, server.port, server.uds), server.api_server_count)
        for sock in socks:
            stack.callback(sock.close)
        stack.enter_context(_removed_at_exit(server.uds))
        import uvloop

        # It loads while this process imports the rest.
        core = CoreHandle(num_front_ends=server.api_server_count)
        status = uvloop.run(_serve(core, engine, server, socks, stop))
    raise typer.Exit(status)


async def _serve(
    core: CoreHandle,
    engine_config: EngineConfig,
    config: ServerConfig,
    socks: Sequence[socket.socket],
    stop: StopSignal,
) -> int:
    from octavo.engine.async_llm import AsyncLLM

    stop.catch_on_loop()
    starting = asyncio.ensure_future(AsyncLLM.start(engine_config, core))
    await asyncio.sleep(0)  # the core gets its orders before the imports below
    try:
        from octavo.entrypoints.openai import http_server
        from octavo.entrypoints.openai.app import build_app
        from octavo.entrypoints.openai.keys import configured_keys
        from octavo.entrypoints.openai.reload import reload_at_hangup
        from octavo.entrypoints.openai.state import serve_engine
        from octavo.entrypoints.openai.tls import server_tls
        from octavo.entrypoints.openai.tracing import configured_tracing

        keys = configured_keys(config, engine_config.scheduler.scheduling_policy)
        tls, tracing = server_tls(config), configured_tracing(config)
        reload_at_hangup(config, keys, tls)
        engine = await _started(starting, stop)
        if engine is None:
            return 0
        server = serve_engine(engine, config, keys)
        server.tracing = tracing
        app = build_app(server)
        gc.freeze()  # what has been loaded stays: no collection looks at it again
        serve_app = partial(
            http_server.serve,
            app,
            server,
            socks[0],
            stop,
            drain_seconds=config.shutdown_timeout,
            tls=tls,
            on_ready=lambda: print(banner(server, engine.info.memory_plan, socks[0]), flush=True),
        )
        if config.api_server_count == 1:
            return await serve_app()
        from octavo.entrypoints.openai.front_ends import FrontEnds

        others = FrontEnds(config, core, socks[1:])
        with contextlib.closing(others.listen()) as private:
            others.start()
            reload_at_hangup(config, keys, tls, others)
            server.siblings = others.http_addresses
            return await serve_app(private=(app, private), others=others)
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


@contextlib.contextmanager
def _removed_at_exit(path: str | None) -> Iterator[None]:
    try:
        yield
    finally:
        if path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _warn_if_open(config: ServerConfig) -> None:
    if config.uds is not None or config.has_keys or config.host == "localhost":
        return
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(config.host).is_loopback:
            return
    logger.warning("anyone who reaches %s may use this server: it has no --api-key", config.host)


def banner(server: Server, plan: MemoryPlan, sock: socket.socket) -> str:
    """What the user sees when the server is ready."""
    from octavo.version import __version__
    from octavo.worker.memory import format_plan

    scheme = "http" if server.config.ssl_certfile is None else "https"
    address = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        shown, url, curl = (
            f"unix:{address}",
            f"{scheme}://localhost",
            f"curl --unix-socket {address}",
        )
    else:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address[0], address[0])
        shown = url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{address[1]}"
        curl = "curl"
    auth = "-H 'Authorization: Bearer KEY' " if server.config.has_keys else ""
    body = {
        "model": next(iter(server.models)),
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }
    return "\n".join(
        [
            f"Octavo {__version__} serves {', '.join(server.models)} at {shown}, "
            f"ready {seconds_since_process_start():.2f} s after the start",
            "",
            f"  {curl} {url}/v1/chat/completions {auth}\\",
            "    -H 'Content-Type: application/json' \\",
            f"    -d {shlex.quote(json.dumps(body))}",
            "",
            format_plan(plan),
        ]
    )


def seconds_since_process_start() -> float:
    """How long this process has been there, to 10 ms; on systems without /proc its CPU time."""
    try:
        with open("/proc/self/stat", "rb") as f:
            ticks = int(f.read().rpartition(b")")[2].split()[19])
    except OSError:
        return time.process_time()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
