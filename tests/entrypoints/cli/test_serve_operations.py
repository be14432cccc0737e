"""`octavo serve` as a process: keys, certificates and logs, and what SIGHUP does."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.entrypoints.cli.test_serve import COMMAND, ROOT, running
from tests.entrypoints.openai.test_tls import CERTIFICATE, KEY, make_certificate
from tests.tiny_model import write_tiny_llama


def write_keys(path: Path, *keys: str) -> None:
    path.write_text(json.dumps({"keys": [{"name": f"of-{k}", "key": k} for k in keys]}))
    path.chmod(0o600)


def status(port: int, key: str, tls: ssl.SSLContext | None = None) -> int:
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        if tls is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=tls)
    )
    with closing(connection):
        connection.request("GET", "/v1/models", headers={"authorization": f"Bearer {key}"})
        return connection.getresponse().status


def port_of(banner: str) -> int:
    return int(banner.partition("://127.0.0.1:")[2].split(",")[0].split("/")[0])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def stopped(process: subprocess.Popen[str]) -> str:
    """What a server said, after SIGTERM ended it well."""
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 0
    return said


def test_keys_are_read_again_at_sighup(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    write_keys(keys, "first")
    options = ["--port=0", f"--api-key-file={keys}", "--log-format=json"]
    with running(*options) as (process, banner):
        port = port_of(banner)
        assert "Authorization: Bearer KEY" in banner
        assert (status(port, "first"), status(port, "second")) == (200, 401)
        write_keys(keys, "second")
        process.send_signal(signal.SIGHUP)
        until(lambda: status(port, "second") == 200)
        assert status(port, "first") == 401
        keys.write_text("{")
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert status(port, "second") == 200
        said = stopped(process)
    lines = [json.loads(line) for line in said.splitlines()]
    messages = [line["message"] for line in lines]
    assert "SIGHUP: API keys read again" in messages
    assert any(m.startswith("SIGHUP: the old API keys stays") for m in messages)
    answered = [line for line in lines if line.get("route") == "/v1/models"]
    assert {(line["status"], line["key"]) for line in answered} == {
        *((200, "of-first"), (200, "of-second"), (401, None)),
    }


@pytest.mark.skipif(not shutil.which("openssl"), reason="certificates need openssl")
def test_tls_and_a_new_certificate(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    old = ssl.create_default_context(cafile=str(tmp_path / CERTIFICATE))
    options = [f"--ssl-certfile={tmp_path / CERTIFICATE}", f"--ssl-keyfile={tmp_path / KEY}"]
    with running("--port=0", *options) as (process, banner):
        port = port_of(banner)
        assert f"https://127.0.0.1:{port}" in banner
        assert status(port, "", old) == 200
        make_certificate(tmp_path)
        new = ssl.create_default_context(cafile=str(tmp_path / CERTIFICATE))
        process.send_signal(signal.SIGHUP)

        def is_new() -> bool:
            try:
                return status(port, "", new) == 200
            except ssl.SSLCertVerificationError:
                return False

        until(is_new)
        stopped(process)


def test_without_files_sighup_is_the_end() -> None:
    with running("--port=0") as (process, _):
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == -signal.SIGHUP


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--api-key-file=/nowhere/keys.json"], "api_key_file='/nowhere/keys.json' cannot be read"),
        (["--ssl-certfile=/nowhere/cert.pem"], "ssl_certfile='/nowhere/cert.pem' cannot be used"),
        (["--log-format=xml"], "log_format='xml' must be text or json"),
    ],
)
def test_wrong_options_are_told_in_a_line(options: list[str], message: str, tmp_path: Path) -> None:
    model = str(write_tiny_llama(tmp_path))
    command = [sys.executable, "-c", COMMAND, "serve", model, "--port=0", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout


def test_a_key_in_the_environment_is_not_shown(tmp_path: Path) -> None:
    with running("--port=0", "--log-level=debug", OCTAVO_API_KEY="sk-hidden") as (process, banner):
        assert status(port_of(banner), "sk-hidden") == 200
        environment = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert b"sk-hidden" not in environment
        assert "sk-hidden" not in banner + stopped(process)
    assert "sk-hidden" not in os.environ.values()
