"""Starting and watching an engine core's process, from the front end's side."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import zmq

_MAX_SOCKET_PATH = 100  # sun_path holds 108 bytes on Linux, 104 on macOS


class CoreLink(Protocol):
    """A front end's socket to a core process, and what becomes of that process.

    Attributes:
        socket: ROUTER; frames are (identity, message).
        identity: the core's.
    """

    socket: zmq.Socket[bytes]
    identity: bytes

    def watch(self, on_exit: Callable[[int], None]) -> None:
        """Call `on_exit(status)` from a thread when the core's process has ended."""

    def close(self) -> object:
        """Let go of the core. May be called twice."""


class CoreHandle:
    """A core process and the socket that it talks to; made before there is an event loop, so that
    the process loads while the front end imports. A `CoreLink`.

    The socket lives in a folder that only this user may enter. The core ends when its standard
    input, a pipe that this process holds, closes.

    Args:
        index: which of this front end's cores it is.
        num_front_ends: it talks to so many front ends; those after this one are `AttachedCore`s.

    Attributes:
        addresses: where the front ends listen, this one at the first.
        folder: where the sockets are, and others may be; removed in the end.
    """

    def __init__(self, index: int = 0, num_front_ends: int = 1) -> None:
        self.identity = index.to_bytes(2, "little")
        self.folder = Path(tempfile.mkdtemp(prefix="octavo-"))
        if len(str(self.folder)) > _MAX_SOCKET_PATH - len("/core-00.sock"):
            self.folder.rmdir()
            self.folder = Path(tempfile.mkdtemp(prefix="octavo-", dir="/tmp"))
        self.addresses = [f"ipc://{self.folder}/core-{i}.sock" for i in range(num_front_ends)]
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self.socket = _listen(self._context, self.addresses[0])
            self.process = subprocess.Popen(
                [sys.executable, "-m", "octavo.engine.core_proc", str(index), *self.addresses],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException:
            self._tidy_up()
            raise
        self._closed = False

    def watch(self, on_exit: Callable[[int], None]) -> None:
        """Call `on_exit(status)` from a thread when the process has ended."""
        threading.Thread(target=lambda: on_exit(self.process.wait()), daemon=True).start()

    def close(self, timeout: float = 5.0) -> int:
        """End the process if need be (its standard input closes; after `timeout` seconds it is
        killed) and remove the socket. Returns its exit status. May be called twice."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(BrokenPipeError):
                assert self.process.stdin is not None
                self.process.stdin.close()
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
            self._tidy_up()
        return self.process.wait()

    def _tidy_up(self) -> None:
        self._context.destroy()
        shutil.rmtree(self.folder, ignore_errors=True)


class AttachedCore:
    """A core process that another front end has started. A `CoreLink`.

    This process's standard input is a pipe that the other front end holds: when it closes, the core
    is as good as gone.

    Args:
        address: the one of `CoreHandle.addresses` that is this front end's.
        index: the core's.
    """

    def __init__(self, address: str, index: int = 0) -> None:
        self.identity = index.to_bytes(2, "little")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = _listen(self._context, address)
        # Until the core has connected, a message to it is an error instead of nothing.
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)

    def watch(self, on_exit: Callable[[int], None]) -> None:
        def wait() -> None:
            while os.read(0, 4096):
                pass
            on_exit(0)

        threading.Thread(target=wait, daemon=True).start()

    def close(self) -> None:
        self._context.destroy()


def _listen(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.ROUTER)
    for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
        socket.setsockopt(option, 0)
    socket.bind(address)
    return socket
