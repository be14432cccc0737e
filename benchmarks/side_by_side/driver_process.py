"""Engines in processes of their own, paused while others run: drivers (`drivers/protocol.py`), and
what servers share with them."""

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
from typing import Any, TypeVar

DRIVERS = Path(__file__).parent / "drivers"
_STOP_SECONDS = 15.0
_SHOWN_LINES = 3


P = TypeVar("P", bound="EngineProcess")


class DriverError(Exception):
    """A driver failed; the message says how."""


class EngineProcess:
    """An engine's process and its children, started at once; use it as a context manager.

    Args:
        name: for messages.
        command: program and arguments.
        variables: environment variables beside our own.
        log: a file for its stderr.
        answers: its stdout is for us; otherwise it goes to the log, too.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        variables: Mapping[str, str],
        log: Path,
        *,
        answers: bool,
    ) -> None:
        self.name = name
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if answers else stderr,
                stderr=stderr,
                start_new_session=True,
            )

    def pause(self) -> None:
        """Stop all its processes: what spins or polls while idle must not disturb the others."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it: it is resumed, asked to, and its stdin ends; by force what does not go by
        itself."""
        assert self._process.stdin is not None
        with suppress(ProcessLookupError):
            self.resume()
            self._process.terminate()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End it and what it left behind."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self: P) -> P:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f": {' / '.join(lines[-_SHOWN_LINES:])}" if lines else ""


class DriverProcess(EngineProcess):
    """A driver."""

    def __init__(
        self, name: str, command: list[str], variables: Mapping[str, str], log: Path
    ) -> None:
        super().__init__(name, command, variables, log, answers=True)
        self.versions: dict[str, str] = {}
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
