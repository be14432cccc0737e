"""A program on a terminal of its own: what it shows is read, keys are pressed."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[3]
CTRL_C, CTRL_D = "\x03", "\x04"
_PROGRAM = """
import fcntl, runpy, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # standard input is the terminal that Ctrl-C comes from
runpy.run_module("octavo", run_name="__main__", alter_sys=True)
"""
_STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|[\x01\x02]")


class PtyProgram:
    """`python -m octavo …` on a pseudo-terminal; a context manager."""

    def __init__(self, arguments: Sequence[str], **env: str) -> None:
        master, slave = pty.openpty()
        self._master = master
        self._raw = b""
        self._seen = 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **env},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._master, keys.encode())

    def interrupt(self, text: str) -> str:
        """Press Ctrl-C until `text` is shown: Python's input loses one that comes in the moment
        between its prompt and its wait for keys, until the next key. Returns what was shown."""
        for _ in range(60):
            self.press(CTRL_C)
            try:
                return self.expect(text, seconds=1.0)
            except AssertionError:
                continue
        return self.expect(text)

    def expect(self, text: str, seconds: float = 60.0) -> str:
        """Read until `text` is shown, from where the last call stopped. Returns what was shown."""
        deadline = time.monotonic() + seconds
        while (at := self.shown.find(text, self._seen)) < 0:
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"{text!r} is not in {self.shown[self._seen :]!r}")
        end = at + len(text)
        shown, self._seen = self.shown[self._seen : end], end
        return shown

    def wait_for_more(self, seconds: float = 60.0) -> None:
        """Read whatever is shown next."""
        self._read(seconds)

    def wait(self, seconds: float = 60.0) -> int:
        """Read to the end. Returns the exit status."""
        deadline = time.monotonic() + seconds
        while self._read(deadline - time.monotonic()):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, seconds))
        try:
            data = os.read(self._master, 65536) if ready else b""
        except OSError:  # the other side is closed
            data = b""
        self._raw += data
        return bool(data)

    @property
    def shown(self) -> str:
        """All that it has written, without colours and carriage returns."""
        return _STYLE.sub("", self._raw.decode("utf-8", "replace")).replace("\r", "")

    def __enter__(self) -> PtyProgram:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._master)
