"""`octavo serve`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import json
import os
import shlex
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.config.engine import EngineConfig
from octavo.entrypoints.cli.options import engine_options
from octavo.errors import ConfigError
from octavo.log import configure_logging, get_logger

if TYPE_CHECKING:
    from octavo.contracts.kv_spec import MemoryPlan
    from octavo.engine.async_llm import AsyncLLM
    from octavo.engine.core_launch import CoreHandle
    from octavo.entrypoints.openai.config import ServerConfig
    from octavo.entrypoints.openai.http_server import StopSignal
    from octavo.entrypoints.openai.state import Server

logger = get_logger(__name__)

_LOG_LEVELS = ("debug", "info", "warning", "error")
_SERVER = "Server"


@engine_options
def serve(
    model_name: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="The model; the same as --model.", show_default=False
        ),
    ] = None,
    *,
    host: Annotated[
        str, typer.Option(help="address to listen at; 0.0.0.0 is all", rich_help_panel=_SERVER)
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="0 takes a free one", rich_help_panel=_SERVER)
    ] = 8000,
    uds: Annotated[
        str | None,
        typer.Option(help="Unix socket to listen at instead", rich_help_panel=_SERVER),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="key that every request but /health needs; may be repeated. The environment "
            "variable OCTAVO_API_KEY (keys separated by commas) keeps it out of `ps`",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            help="name of the model in the API; may be repeated. Default: as --model gives it",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    max_num_queued_reqs: Annotated[
        int,
        typer.Option(
            min=0,
            help="most requests that wait; more get 503. 0: no limit",
            rich_help_panel=_SERVER,
        ),
    ] = 1024,
    max_num_queued_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            help="most prompt tokens that wait; more get 503. 0: no limit",
            rich_help_panel=_SERVER,
        ),
    ] = 0,
    max_request_bytes: Annotated[
        int, typer.Option(min=1, help="largest body; more gets 413", rich_help_panel=_SERVER)
    ] = 16 * 2**20,
    max_logprobs: Annotated[
        int,
        typer.Option(
            min=-1,
            help="most alternatives per token that a request may ask for; -1: all",
            rich_help_panel=_SERVER,
        ),
    ] = 20,
    shutdown_timeout: Annotated[
        float,
        typer.Option(
            min=0,
            help="seconds that requests in progress have to end after SIGTERM",
            rich_help_panel=_SERVER,
        ),
    ] = 30.0,
    disable_fastapi_docs: Annotated[
        bool,
        typer.Option(
            "--disable-fastapi-docs",
            help="no /docs and /openapi.json (the name is vLLM's)",
            rich_help_panel=_SERVER,
        ),
    ] = False,
    log_level: Annotated[
        str,
        typer.Option(
            metavar="debug|info|warning|error",
            help="info has a line per request",
            rich_help_panel=_SERVER,
        ),
    ] = "info",
    engine: EngineConfig,
) -> None:
    """Serve a model over the OpenAI API."""
    from octavo.engine.core_launch import CoreHandle
    from octavo.entrypoints.openai.config import ServerConfig
    from octavo.entrypoints.openai.sockets import bind

    if log_level not in _LOG_LEVELS:
        raise ConfigError(f"log_level={log_level!r} must be one of {', '.join(_LOG_LEVELS)}")
    configure_logging(log_level)
    if model_name is not None:
        engine = replace(engine, model=replace(engine.model, model=model_name)).checked()
    config = ServerConfig(
        api_keys=_api_keys(api_key),
        max_num_queued_reqs=max_num_queued_reqs,
        max_num_queued_tokens=max_num_queued_tokens,
        max_request_bytes=max_request_bytes,
        max_logprobs=max_logprobs,
        docs=not disable_fastapi_docs,
    )
    if uds is None and not config.api_keys:
        _warn_if_open(host)
    with contextlib.closing(bind(host, port, uds)) as sock, _removed_at_exit(uds):
        import uvloop

        core = CoreHandle()  # loads while this process imports the rest
        names = served_model_name or []
        status = uvloop.run(_serve(core, engine, config, sock, names, shutdown_timeout))
    raise typer.Exit(status)


async def _serve(
    core: CoreHandle,
    engine_config: EngineConfig,
    config: ServerConfig,
    sock: socket.socket,
    names: list[str],
    shutdown_timeout: float,
) -> int:
    from octavo.engine.async_llm import AsyncLLM

    starting = asyncio.ensure_future(AsyncLLM.start(engine_config, core))
    await asyncio.sleep(0)  # the core gets its orders before the imports below
    try:
        from octavo.entrypoints.openai import http_server
        from octavo.entrypoints.openai.app import build_app
        from octavo.entrypoints.openai.state import serve_engines

        stop = _install_signals(http_server.StopSignal())
        engine = await _started(starting, stop)
        if engine is None:
            return 0
        names = names or [engine.config.model.model]
        server = serve_engines(dict.fromkeys(names, engine), config)
        gc.freeze()  # what has been loaded stays: no collection looks at it again
        return await http_server.serve(
            build_app(server),
            server,
            sock,
            stop,
            drain_seconds=shutdown_timeout,
            on_ready=lambda: print(banner(server, engine.info.memory_plan, sock), flush=True),
        )
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


def _install_signals(stop: StopSignal) -> StopSignal:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.request)
    return stop


@contextlib.contextmanager
def _removed_at_exit(path: str | None) -> Iterator[None]:
    try:
        yield
    finally:
        if path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _api_keys(given: list[str] | None) -> tuple[str, ...]:
    """Keys of the command line and of OCTAVO_API_KEY. Raises ConfigError for an empty one."""
    keys = list(given or [])
    if "OCTAVO_API_KEY" in os.environ:
        keys += [key.strip() for key in os.environ["OCTAVO_API_KEY"].split(",")]
    if not all(keys):
        raise ConfigError("an API key is empty; leave --api-key and OCTAVO_API_KEY out for none")
    return tuple(keys)


def _warn_if_open(host: str) -> None:
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if host != "localhost":
        logger.warning("anyone who reaches %s may use this server: it has no --api-key", host)


def banner(server: Server, plan: MemoryPlan, sock: socket.socket) -> str:
    """What the user sees when the server is ready."""
    from octavo.version import __version__
    from octavo.worker.memory import format_plan

    address = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        shown, url, curl = f"unix:{address}", "http://localhost", f"curl --unix-socket {address}"
    else:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address[0], address[0])
        shown = url = f"http://{f'[{host}]' if ':' in host else host}:{address[1]}"
        curl = "curl"
    auth = "-H 'Authorization: Bearer KEY' " if server.config.api_keys else ""
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
