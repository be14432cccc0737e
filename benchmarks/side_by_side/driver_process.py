"""The other end of a driver (`drivers/protocol.py`): a process that is paused while others run."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

DRIVERS = Path(__file__).parent / "drivers"
_STOP_SECONDS = 15.0
_SHOWN_LINES = 3


class DriverError(Exception):
    """A driver failed; the message says how."""


class DriverProcess:
    """A driver, started at once; use it as a context manager.

    Args:
        name: for messages and for its log.
        command: program and arguments.
        variables: environment variables beside our own.
        log: a file for its stderr.
    """

    def __init__(
        self, name: str, command: list[str], variables: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self.versions: dict[str, str] = {}
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_ready(self, timeout: float) -> None:
        """Until it has loaded its engine. Raises DriverError."""
        self.versions = self._receive(timeout)["versions"]

    def ask(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a message and wait for its answer. Raises DriverError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise DriverError(f"{self.name} ended{self._last_words()}") from None
        return self._receive(timeout)

    def pause(self) -> None:
        """Stop all its processes: what spins or polls while idle must not disturb the others."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it; by force what does not end by itself."""
        assert self._process.stdin is not None
        with suppress(ProcessLookupError):
            self.resume()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def kill(self) -> None:
        """End it and what it left behind."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> DriverProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _receive(self, timeout: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise DriverError(f"{self.name} did not answer within {timeout:.0f} s") from None
        if line is None:
            raise DriverError(f"{self.name} ended{self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise DriverError(f"{self.name}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f": {' / '.join(lines[-_SHOWN_LINES:])}" if lines else ""
