"""`octavo serve` as a process, for tests over HTTP on the default model."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.entrypoints.openai.harness import Reply, close, read_reply, request_bytes

ROOT = Path(__file__).parents[3]
COMMAND = "from octavo.entrypoints.cli.main import run; run()"
# One thread: the tests of the kernels are elsewhere, and other processes may be busy.
MODEL_OPTIONS = {"dtype": "float32", "num_threads": 1, "kv_cache_memory_bytes": 2**28}
OPTIONS = [f"--{name.replace('_', '-')}={value}" for name, value in MODEL_OPTIONS.items()]
PORT = re.compile(r"http://127\.0\.0\.1:(\d+)")


class Live:
    """A server process."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    @property
    def core(self) -> int:
        """The engine core's process id."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        [core] = path.read_text().split()
        return int(core)

    def post(self, path: str, body: dict[str, Any], **headers: str) -> Reply:
        return asyncio.run(self.apost(path, body, **headers))

    async def apost(self, path: str, body: dict[str, Any], **headers: str) -> Reply:
        return await self.request("POST", path, body, headers)

    def get(self, path: str) -> Reply:
        return asyncio.run(self.request("GET", path, None, {}))

    async def request(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Reply:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
        try:
            writer.write(request_bytes(method, path, body, headers))
            return await read_reply(reader)
        finally:
            await close(writer)

    def complete(self, prompt: Any, **fields: Any) -> Reply:
        return self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})

    def chat(self, messages: Any, **fields: Any) -> Reply:
        body = {"messages": messages, "temperature": 0, "max_tokens": 8, **fields}
        return self.post("/v1/chat/completions", body)

    def tokens_of(self, **fields: Any) -> list[int]:
        return self.post("/tokenize", fields).json["tokens"]

    def metric(self, name: str, **labels: str) -> float:
        """A sample of /metrics."""
        text = self.get("/metrics").body.decode()
        for sample in re.finditer(rf"^octavo:{name}(\{{.*\}})? (\S+)$", text, re.MULTILINE):
            if all(f'{key}="{value}"' in sample[1] for key, value in labels.items()):
                return float(sample[2])
        raise KeyError(name)

    def until_idle(self, seconds: float = 10.0) -> None:
        deadline = time.monotonic() + seconds
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        while any(self.metric(name) for name in names):
            assert time.monotonic() < deadline, "it never became idle"
            time.sleep(0.05)


@contextmanager
def live(*args: str, home: Path | None = None) -> Iterator[Live]:
    """The default model, unless `args` name another.

    Args:
        home: in place of the cache folder of everybody else.
    """
    with serve_process(*OPTIONS, *args, home=home) as server:
        yield server


@contextmanager
def serve_process(*args: str, home: Path | None = None) -> Iterator[Live]:
    """`octavo serve` with these arguments alone; ready when it is there."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if home is not None:
        environment["OCTAVO_HOME"] = str(home)
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "serve", "--port", "0", *args],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        banner = process.stdout.readline()
        found = PORT.search(banner)
        assert found, banner
        yield Live(process, int(found[1]))
    finally:
        process.terminate()
        process.communicate(timeout=30)
