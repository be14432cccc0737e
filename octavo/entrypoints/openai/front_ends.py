"""Several front ends of one server (`--api-server-count`), as the first one sees the others.

Each is a process with an HTTP server of its own, all listening at the same address and all at the
same engine core. Tokenizing, parsing and writing streams then have as many cores as there are front
ends. The first one is `octavo serve` itself: it starts the core and the others, starts anew what
ends, and stops all of them together.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from octavo.entrypoints.openai.config import ServerConfig
from octavo.log import get_logger

if TYPE_CHECKING:
    from octavo.engine.core_launch import CoreHandle

logger = get_logger(__name__)

RESTART_SECONDS = 1.0
"""Between the end of a front end and its next start."""
MAX_QUICK_ENDS = 5
"""A server with a front end that has ended so often, without ever running for a minute, stops."""
_QUICK_SECONDS = 60.0
_EXIT_SECONDS = 5.0


class Order(msgspec.Struct, kw_only=True):
    """What a further front end is told, as a line of JSON on its standard input. That stays open
    as long as the first one lives.

    Attributes:
        core_address: the socket of the engine core that is this front end's.
        http_addresses: paths of the private sockets of all front ends.
        ledger: path of the file of what API keys have used.
        listener: descriptor of the listening socket.
    """

    index: int
    config: ServerConfig
    core_address: str
    http_addresses: list[str]
    ledger: str
    listener: int


def ledger_path(core: CoreHandle) -> Path:
    """The file of the `Ledger` of a server with several front ends."""
    return core.folder / "ledger"


def listen_privately(path: str) -> socket.socket:
    """A front end's private socket. Its folder is private already."""
    Path(path).unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    return sock


class FrontEnds:
    """The front ends after the first.

    Args:
        config: the server's; its `api_server_count` counts the first one too.
        core: the engine core, with an address for each.
        socks: their listening sockets. They stay open here: connections to one that has ended wait
            for the next.

    Attributes:
        failed: set when one cannot be kept running.
        take_over: called with the listening socket of one that has ended for good, where clients
            go on coming as long as it is open.
        http_addresses: paths of the private sockets of all front ends, the first one included.
    """

    def __init__(
        self, config: ServerConfig, core: CoreHandle, socks: Sequence[socket.socket]
    ) -> None:
        self.failed = asyncio.Event()
        self.take_over: Callable[[socket.socket], None] = lambda sock: None
        self._socks = socks
        addresses = [str(core.folder / f"http-{i}.sock") for i in range(config.api_server_count)]
        self.http_addresses = addresses
        self._orders = [
            Order(
                index=i,
                config=config,
                core_address=core.addresses[i],
                http_addresses=addresses,
                ledger=str(ledger_path(core)),
                listener=sock.fileno(),
            )
            for i, sock in enumerate(socks, start=1)
        ]
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._keepers: Sequence[asyncio.Task[None]] = ()
        self._stopping = False

    def listen(self) -> socket.socket:
        """The first front end's private socket."""
        return listen_privately(self.http_addresses[0])

    def start(self) -> None:
        """Start them, and again whatever ends."""
        self._keepers = [
            asyncio.create_task(self._keep(order, sock))
            for order, sock in zip(self._orders, self._socks)
        ]

    def drain(self) -> None:
        """Let them end what they have begun; said twice: at once. None is started any more."""
        self._stopping = True
        self._signal(signal.SIGTERM)

    def reload(self) -> None:
        """Let them read the files of the configuration again."""
        self._signal(signal.SIGHUP)

    @property
    def running(self) -> int:
        """How many there are."""
        return sum(process.returncode is None for process in self._processes.values())

    async def close(self) -> None:
        """End those that are left: their standard input closes, then they are killed."""
        self._stopping = True
        processes = list(self._processes.values())
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_all_ended(processes), _EXIT_SECONDS)
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await _all_ended(processes)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep(self, order: Order, sock: socket.socket) -> None:
        await self._restart(order)
        self.take_over(sock)

    async def _restart(self, order: Order) -> None:
        """Run one, again and again; returns when it is not to run any more."""
        num_quick = 0
        while not self._stopping:
            started = time.monotonic()
            try:
                process = await self._launch(order)
                end = f"ended with status {await process.wait()}"
            except OSError as error:  # no memory, too many processes
                end = f"could not be started: {error}"
            if self._stopping:
                return
            num_quick = num_quick + 1 if time.monotonic() - started < _QUICK_SECONDS else 0
            logger.error("front end %d %s", order.index, end)
            if num_quick >= MAX_QUICK_ENDS:
                self.failed.set()
                return
            await asyncio.sleep(RESTART_SECONDS)

    async def _launch(self, order: Order) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "octavo.entrypoints.openai.front_end_proc",
            stdin=subprocess.PIPE,
            pass_fds=[order.listener],
            start_new_session=True,
        )
        self._processes[order.index] = process
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        if self._stopping:  # `drain` did not know of it
            process.send_signal(signal.SIGTERM)
        return process


async def _all_ended(processes: Sequence[asyncio.subprocess.Process]) -> None:
    await asyncio.gather(*(process.wait() for process in processes))
