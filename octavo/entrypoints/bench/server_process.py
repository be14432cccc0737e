"""`octavo serve` as a child of a benchmark: started, measured and stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType

from octavo.config.engine import EngineConfig
from octavo.errors import OctavoError

_URL = re.compile(r" at (http://[^\s,]+), ready ")
_STOP_SECONDS = 10.0
_MAX_SHOWN_BYTES = 4096


class ServerProcess:
    """A server on a free port of this machine; a context manager.

    Args:
        arguments: of `octavo serve`, beside host and port.

    Attributes:
        url: where it listens; known inside the context.

    Raises:
        OctavoError: on entry, where it ends instead of becoming ready; with its last words.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._command = [
            *(sys.executable, "-m", "octavo", "serve", *arguments),
            *("--host", "127.0.0.1", "--port", "0", "--log-level", "warning"),
        ]
        self.url = ""

    def __enter__(self) -> ServerProcess:
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self._command,
            env={k: v for k, v in os.environ.items() if k != "OCTAVO_API_KEY"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def cpu_seconds(self) -> dict[str, float] | None:
        """CPU time so far, user and system, of "front_end" (the server) and "core" (its child);
        None on systems without /proc."""
        front_end = _cpu_seconds(self._process.pid)
        if front_end is None:
            return None
        children = _children(self._process.pid)
        return {"front_end": front_end, "core": sum(_cpu_seconds(pid) or 0.0 for pid in children)}

    def resident_bytes(self) -> dict[str, int]:
        """Memory that they hold now (VmRSS), by the same names; nothing on systems without
        /proc."""
        own = _resident_bytes(self._process.pid)
        children = [_resident_bytes(pid) for pid in _children(self._process.pid)]
        return {} if own is None else {"front_end": own, "core": sum(c or 0 for c in children)}

    def _wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if match := _URL.search(line):
                self.url = match[1]
                return
        status = self._process.wait()
        raise OctavoError(
            f"the server ended with status {status} before it was ready{self._last_words()}"
        )

    def _last_words(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _MAX_SHOWN_BYTES))
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1].removeprefix('octavo: ')}" if lines else ""

    def _stop(self) -> None:
        process = self._process
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
        self._log.close()


def engine_arguments(config: EngineConfig) -> list[str]:
    """The command-line options that make `config`: one per field that is not at its default."""
    arguments = []
    for section in fields(EngineConfig):
        part = getattr(config, section.name)
        for f in fields(part):
            value, flag = getattr(part, f.name), f.name.replace("_", "-")
            if value == f.default:
                continue
            if isinstance(value, bool):
                arguments.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                arguments.append(f"--{flag}={value}")
    return arguments


def _cpu_seconds(pid: int) -> float | None:
    """utime + stime of all threads, to a clock tick (10 ms)."""
    if (stat := _stat(pid)) is None:
        return None
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    return 1024 * int(found[1]) if found else None


def _children(pid: int) -> list[int]:
    candidates = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]
    return [c for c in candidates if (stat := _stat(c)) is not None and int(stat[1]) == pid]


def _stat(pid: int) -> list[bytes] | None:
    """/proc/PID/stat from the field `state` on; None where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
