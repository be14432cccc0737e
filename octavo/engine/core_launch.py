"""Starting and watching an engine core's process, from the front end's side."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import zmq

_MAX_SOCKET_PATH = 100  # sun_path holds 108 bytes on Linux, 104 on macOS


class CoreHandle:
    """A core process and the socket that it talks to; made before there is an event loop, so that
    the process loads while the front end imports.

    The socket lives in a folder that only this user may enter. The core ends when its standard
    input, a pipe that this process holds, closes.

    Attributes:
        socket: ROUTER; frames are (identity, message).
        identity: the core's.
    """

    def __init__(self, index: int = 0) -> None:
        self.identity = index.to_bytes(2, "little")
        self._folder = Path(tempfile.mkdtemp(prefix="octavo-"))
        if len(str(self._folder)) > _MAX_SOCKET_PATH - len("/core.sock"):
            self._folder.rmdir()
            self._folder = Path(tempfile.mkdtemp(prefix="octavo-", dir="/tmp"))
        address = f"ipc://{self._folder}/core.sock"
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.ROUTER)
        try:
            for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
                self.socket.setsockopt(option, 0)
            self.socket.bind(address)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "octavo.engine.core_proc", address, str(index)],
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
        self.socket.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)
