"""A further front end of a server: `python -m octavo.entrypoints.openai.front_end_proc`, started by
`FrontEnds`, with its `Order` on standard input."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
from pathlib import Path

import msgspec

from octavo.entrypoints.openai.front_ends import Order, listen_privately
from octavo.entrypoints.openai.stop_signal import StopSignal
from octavo.log import configure_logging

_MAX_ORDER_BYTES = 1 << 20


def main() -> int:
    """Serve as ordered. Returns the exit status."""
    stop = StopSignal()
    order = _read_order()
    configure_logging(order.config.log_level, order.config.log_format)
    own_address = order.http_addresses[order.index]
    with (
        stop.caught(),
        contextlib.closing(socket.socket(fileno=order.listener)) as sock,
        contextlib.closing(listen_privately(own_address)) as private,
    ):
        import uvloop

        status = uvloop.run(_serve(order, sock, private, stop))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(own_address)
    return status


async def _serve(
    order: Order, sock: socket.socket, private: socket.socket, stop: StopSignal
) -> int:
    from octavo.engine.async_llm import AsyncLLM
    from octavo.engine.core_launch import AttachedCore
    from octavo.entrypoints.openai import http_server
    from octavo.entrypoints.openai.app import build_app
    from octavo.entrypoints.openai.keys import configured_keys
    from octavo.entrypoints.openai.ledger import Ledger
    from octavo.entrypoints.openai.reload import reload_at_hangup
    from octavo.entrypoints.openai.siblings import AnswerSiblings, PassOn
    from octavo.entrypoints.openai.state import serve_engine
    from octavo.entrypoints.openai.tls import server_tls
    from octavo.entrypoints.openai.tracing import configured_tracing

    stop.catch_on_loop()
    engine = await AsyncLLM.attach(AttachedCore(order.core_address))
    try:
        config = order.config
        ledger = Ledger(
            Path(order.ledger), front_end=order.index, num_front_ends=config.api_server_count
        )
        keys = configured_keys(config, engine.config.scheduler.scheduling_policy, ledger)
        server = serve_engine(engine, config, keys)
        server.tracing = configured_tracing(config)
        tls = server_tls(config)
        reload_at_hangup(config, keys, tls)
        app = build_app(server)
        gc.freeze()
        return await http_server.serve(
            PassOn(app, order.http_addresses, order.index, server),
            server,
            sock,
            stop,
            drain_seconds=config.shutdown_timeout,
            private=(AnswerSiblings(app), private),
            tls=tls,
        )
    finally:
        await engine.shutdown()


def _read_order() -> Order:
    """The first line of standard input, and not a byte more: its end is somebody else's to see."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece or len(line) > _MAX_ORDER_BYTES:
            raise SystemExit("front_end_proc is started by octavo serve, which says what to be")
        line += piece
    return msgspec.json.decode(line, type=Order)


if __name__ == "__main__":
    sys.exit(main())
