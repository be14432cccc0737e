from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from octavo.entrypoints.openai.config import ServerConfig
from octavo.entrypoints.openai.tls import ServerTLS, server_tls
from octavo.errors import ConfigError
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import close, eventually, read_reply, serving

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="certificates need openssl")

CERTIFICATE, KEY = "cert.pem", "key.pem"


def make_certificate(folder: Path, name: str = "127.0.0.1", *options: str) -> None:
    """A self-signed certificate and its key."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-keyout", KEY, "-out", CERTIFICATE, "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", *(options or ("-nodes",))]
    folder.mkdir(exist_ok=True)
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls")
    make_certificate(path)
    return path


def config(folder: Path, **options: Any) -> ServerConfig:
    return ServerConfig(
        ssl_certfile=str(folder / CERTIFICATE), ssl_keyfile=str(folder / KEY), **options
    )


def tls_of(folder: Path, **options: Any) -> ServerTLS:
    tls = server_tls(config(folder, **options))
    assert tls is not None
    return tls


def trusting(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(folder / CERTIFICATE))


async def test_answers_and_streams(folder: Path) -> None:
    async with serving(tls=tls_of(folder), client_tls=trusting(folder)) as s:
        assert (await s.get("/health")).status == 200
        reply = await s.completion("SAY:hello", stream=True)
        assert "".join(e["choices"][0]["text"] for e in reply.events) == "hello"
        _, writer = await s.connect()
        tls = writer.get_extra_info("ssl_object")
        assert tls.version() in ("TLSv1.2", "TLSv1.3")
        await close(writer)
        plain_reader, plain_writer = await asyncio.open_connection("127.0.0.1", s.port)
        plain_writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        with suppress(ConnectionError):
            assert not (await plain_reader.read()).startswith(b"HTTP/1.1 200")
        await close(plain_writer)
        assert (await s.get("/health")).status == 200


async def test_an_answer_before_the_body_arrives_whole(folder: Path) -> None:
    size = 2**21
    head = (
        b"POST /tokenize HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        % size
    )
    tls, client = tls_of(folder), trusting(folder)
    async with serving(tls=tls, client_tls=client, max_request_bytes=2**18) as s:
        reader, writer = await s.connect()
        writer.write(head)
        for _ in range(size // 2**16):
            writer.write(b"x" * 2**16)
            await writer.drain()
        assert (await read_reply(reader)).status == 413
        await close(writer)


async def test_drain(folder: Path) -> None:
    engine = FakeEngine(step_seconds=0.002)
    async with serving(engine, tls=tls_of(folder), client_tls=trusting(folder)) as s:
        task = asyncio.ensure_future(s.completion("count", stream=True, max_tokens=100))
        await eventually(lambda: s.engine.stats().num_running == 1)
        s.stop.request()
        await eventually(lambda: s.server.admission.draining)
        assert (await s.get("/health")).status == 503
        assert len((await task).events) == 100
        assert await s.task == 0


async def test_clients_that_need_a_certificate(folder: Path) -> None:
    tls = tls_of(folder, ssl_ca_certs=str(folder / CERTIFICATE), ssl_cert_reqs=2)
    anonymous, known = trusting(folder), trusting(folder)
    known.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    async with serving(tls=tls, client_tls=known) as s:
        assert (await s.get("/health")).status == 200
        s.client_tls = anonymous
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):  # IndexError: no status
            await s.get("/health")


async def test_a_new_certificate(folder: Path, tmp_path: Path) -> None:
    make_certificate(tmp_path)
    tls = tls_of(tmp_path)
    async with serving(tls=tls, client_tls=trusting(tmp_path)) as s:
        assert (await s.get("/health")).status == 200
        shutil.copy(folder / CERTIFICATE, tmp_path)  # of another key
        with pytest.raises(ConfigError, match="key values mismatch"):
            tls.reload()
        assert (await s.get("/health")).status == 200
        shutil.copy(folder / KEY, tmp_path)
        tls.reload()
        with pytest.raises(ssl.SSLCertVerificationError):
            await s.get("/health")
        s.client_tls = trusting(folder)
        assert (await s.get("/health")).status == 200


def test_files_that_cannot_be_used(folder: Path, tmp_path: Path) -> None:
    make_certificate(tmp_path / "locked", "x", "-passout", "pass:secret")
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    cert, key = str(folder / CERTIFICATE), str(folder / KEY)
    for options, message in (
        ({"ssl_certfile": "nowhere.pem"}, "ssl_certfile='nowhere.pem' cannot be used: No such"),
        ({"ssl_certfile": str(nothing)}, "cannot be used: no"),
        ({"ssl_certfile": cert}, "cannot be used"),  # where is the key?
        ({"ssl_certfile": cert, "ssl_keyfile": cert}, "cannot be used"),
        ({"ssl_certfile": cert, "ssl_keyfile": str(tmp_path / "locked" / KEY)}, "password"),
        (
            {"ssl_certfile": cert, "ssl_keyfile": key, "ssl_ca_certs": str(nothing)},
            "ssl_ca_certs",
        ),
    ):
        with pytest.raises(ConfigError) as raised:
            server_tls(ServerConfig(**options))
        assert message in str(raised.value), options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ssl_keyfile": "k"}, "need ssl_certfile"),
        ({"ssl_ca_certs": "k"}, "need ssl_certfile"),
        ({"ssl_certfile": "c", "ssl_cert_reqs": 2}, "needs ssl_ca_certs"),
        ({"ssl_certfile": "c", "ssl_cert_reqs": 3}, "must be 0, 1 or 2"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerConfig(**options)


def test_no_certificate_no_tls() -> None:
    assert server_tls(ServerConfig()) is None
