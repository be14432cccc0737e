"""`octavo serve`."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from dataclasses import replace
from typing import Annotated

import typer

from octavo.config.engine import EngineConfig
from octavo.entrypoints.cli.options import config_options, engine_options, vllm_flags
from octavo.entrypoints.openai.config import ServerConfig
from octavo.env import api_keys
from octavo.log import LOG_FORMAT_VARIABLE, configure_logging, get_logger

logger = get_logger(__name__)


@vllm_flags
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
    from octavo.entrypoints.openai.sockets import bind, owned, share
    from octavo.entrypoints.openai.stop_signal import StopSignal

    stop = StopSignal()
    configure_logging(server.log_level, server.log_format)
    os.environ[LOG_FORMAT_VARIABLE] = server.log_format  # the engine core's log is the same
    server = replace(server, api_key=[*(server.api_key or ()), *api_keys()])
    if model_name is not None:
        engine = replace(engine, model=replace(engine.model, model=model_name)).checked()
    _warn_if_open(server)
    with stop.caught(), contextlib.ExitStack() as stack:
        stack.enter_context(owned(server.uds))
        socks = share(bind(server.host, server.port, server.uds), server.api_server_count)
        for sock in socks:
            stack.callback(sock.close)
        # It loads while this process imports the rest.
        core = CoreHandle(num_front_ends=server.api_server_count)
        import uvloop

        from octavo.entrypoints.openai.launch import serve_model

        status = uvloop.run(serve_model(core, engine, server, socks, stop))
    raise typer.Exit(status)


def _warn_if_open(config: ServerConfig) -> None:
    if config.uds is not None or config.has_keys or config.host == "localhost":
        return
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(config.host).is_loopback:
            return
    logger.warning("anyone who reaches %s may use this server: it has no --api-key", config.host)
