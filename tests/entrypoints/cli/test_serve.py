"""`octavo serve` as a process, around a fake engine."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from octavo.entrypoints.openai.banner import seconds_since_process_start
from tests.tiny_model import write_tiny_llama

ROOT = Path(__file__).parents[3]
COMMAND = "from octavo.entrypoints.cli.main import run; run()"


@contextmanager
def running(*args: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """(process, banner) of a server that is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.entrypoints.cli.fake_serve", *args],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = []
        while line := process.stdout.readline():
            lines.append(line)
            if line.startswith("  left"):
                break
        yield process, "".join(lines)
    finally:
        process.kill()
        process.communicate()


def port_of(banner: str) -> int:
    return int(banner.partition("http://127.0.0.1:")[2].split(",")[0].split("/")[0])


@contextmanager
def posted(port: int, body: dict[str, Any], **headers: str) -> Iterator[http.client.HTTPResponse]:
    """The response to a completion request."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        headers = {"content-type": "application/json", **headers}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        with connection.getresponse() as response:
            yield response


def status_of(port: int, body: dict[str, Any], **headers: str) -> int:
    with posted(port, body, **headers) as response:
        return response.status


def test_banner_and_stop() -> None:
    """URL, curl, plan and seconds; SIGTERM under load ends with status 0."""
    with running("a-model", "--port", "0", "--served-model-name", "one") as (process, banner):
        port = port_of(banner)
        assert banner.startswith("Octavo ")
        assert f"serves one at http://127.0.0.1:{port}, ready " in banner
        assert f"curl http://127.0.0.1:{port}/v1/chat/completions" in banner
        assert "memory plan" in banner
        body = {"prompt": "count", "stream": True, "max_tokens": 300}
        with posted(port, body) as stream:
            assert stream.status == 200
            assert stream.readline().startswith(b"data: ")
            process.send_signal(signal.SIGTERM)
            data = stream.read()
        assert data.endswith(b"data: [DONE]\n\n")
        assert data.count(b'"text"') == 299
        assert process.wait(20) == 0
        with pytest.raises(ConnectionRefusedError):
            status_of(port, {})


def test_death_and_keys() -> None:
    with running("--port", "0", "--api-key", "k1", OCTAVO_API_KEY="k2, k3") as (process, banner):
        port = port_of(banner)
        assert "-H 'Authorization: Bearer KEY'" in banner
        body = {"prompt": "SAY:x"}
        assert status_of(port, body) == 401
        for key in ("k1", "k2", "k3"):
            assert status_of(port, body, authorization=f"Bearer {key}") == 200
        auth = {"authorization": "Bearer k1"}
        long = {"prompt": "count", "stream": True, "max_tokens": 4000}
        with posted(port, long, **auth) as stream:
            stream.readline()
            process.send_signal(signal.SIGUSR1)
            assert b'"error"' in stream.read()
        assert status_of(port, body, **auth) == 503
        assert process.wait(20) == 1


def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with running("--uds", str(path)) as (process, banner):
        assert f"curl --unix-socket {path} http://localhost/v1/" in banner
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert not path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2, 0.5])
def test_a_signal_during_the_start(
    tmp_path_factory: pytest.TempPathFactory, number: signal.Signals, delay: float
) -> None:
    """From the moment there is something to leave behind: status 0, no orphan, no socket."""
    model = write_tiny_llama(tmp_path_factory.mktemp("tiny"))
    temporary = tmp_path_factory.mktemp("tmp")
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "serve", str(model), "--port", "0"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
    )
    while not list(temporary.iterdir()):  # the folder of the core's socket
        assert process.poll() is None
        time.sleep(0.001)
    time.sleep(delay)
    process.send_signal(number)
    assert process.wait(20) == 0
    assert list(temporary.iterdir()) == []
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if _mentions(p, temporary)]


def _mentions(path: Path, what: Path) -> bool:
    try:
        return str(what).encode() in path.read_bytes()
    except OSError:  # the process has ended
        return False


@pytest.mark.parametrize(
    ("args", "env", "words"),
    [
        (["--port", "70000"], {}, "port=70000"),
        (["--host", "256.1.1.1"], {}, "cannot listen"),
        (["--log-level", "loud"], {}, "must be debug"),
        (["--api-key", ""], {}, "api_key has an empty value"),
        ([], {"OCTAVO_API_KEY": ""}, "api_key has an empty value"),
        (["--max-num-queued-reqs", "-1"], {}, "max_num_queued_reqs=-1"),
        (["--max-num-seqs", "0"], {}, "max_num_seqs=0"),
    ],
)
def test_wrong_options(args: list[str], env: dict[str, str], words: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", COMMAND, "serve", *args],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode != 0
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_used_port_is_an_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        with running("--port", port) as (process, banner):
            assert banner == ""
            assert process.wait(20) != 0


def test_seconds_since_process_start() -> None:
    first = seconds_since_process_start()
    assert 0 < first < seconds_since_process_start() + 0.01
