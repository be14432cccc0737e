from __future__ import annotations

import socket
from pathlib import Path

import pytest

from octavo.entrypoints.openai.sockets import bind, removed_at_exit, share
from octavo.errors import ConfigError


def test_tcp() -> None:
    with bind("127.0.0.1", 0) as sock:
        host, port = sock.getsockname()
        assert host == "127.0.0.1"
        assert sock.proto == socket.IPPROTO_TCP
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect((host, port))  # bound, but not listening yet
        sock.listen()
        with pytest.raises(ConfigError, match=f"{port}.*in use"):
            bind("127.0.0.1", port)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_ipv6() -> None:
    """`::` is every address, of IPv4 too; several front ends share it."""
    first, second = share(bind("::", 0), 2)
    with first, second:
        port = first.getsockname()[1]
        first.listen()
        second.listen()
        for host in ("::1", "127.0.0.1"):
            socket.create_connection((host, port)).close()
        with pytest.raises(ConfigError, match=rf"cannot listen at \[::1\]:{port}: .*in use"):
            bind("::1", port)


def test_unix(tmp_path: Path) -> None:
    path = tmp_path / "s"
    bind("", 0, str(path)).close()
    with bind("", 0, str(path)) as sock:  # what an earlier server left is replaced
        assert sock.family == socket.AF_UNIX
    path.unlink()
    path.write_text("keep me")
    with pytest.raises(ConfigError, match="in use"):
        bind("", 0, str(path))
    assert path.read_text() == "keep me"


def test_a_unix_socket_of_a_server_that_runs_is_its_own(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with bind("", 0, str(path)) as sock, removed_at_exit(str(path)):
        sock.listen(0)
        for _ in range(3):  # the last one finds no room to wait
            with pytest.raises(ConfigError, match="in use"):
                bind("", 0, str(path))
        path.unlink()
        bind("", 0, str(path)).close()  # another one's
    assert path.exists()
    with bind("", 0, str(path)), removed_at_exit(str(path)):
        pass
    assert not path.exists()


@pytest.mark.parametrize(
    ("host", "port", "uds"),
    [("no such host", 80, None), ("127.0.0.1", 99999, None), ("", 0, "/no/such/folder/s")],
)
def test_addresses_that_cannot_be(host: str, port: int, uds: str | None) -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        bind(host, port, uds)


def test_shared_address_is_one_address() -> None:
    sockets = share(bind("127.0.0.1", 0), 3)
    try:
        assert len({sock.getsockname() for sock in sockets}) == 1
        for sock in sockets:
            sock.listen()
        with pytest.raises(ConfigError, match="cannot listen"):
            bind(*sockets[0].getsockname())
    finally:
        for sock in sockets:
            sock.close()


def test_a_unix_socket_is_shared_as_one(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    sockets = share(bind("", 0, path), 2)
    try:
        assert [sock.getsockname() for sock in sockets] == [path, path]
    finally:
        for sock in sockets:
            sock.close()
