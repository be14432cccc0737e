from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from octavo.entrypoints.openai.sockets import bind, owned, share
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


def test_a_unix_socket_of_a_server_that_listens_is_its_own(tmp_path: Path) -> None:
    """Even without its lock."""
    path = tmp_path / "s"
    with bind("", 0, str(path)) as sock:
        sock.listen(0)
        for _ in range(3):  # the last one finds no room to wait
            with pytest.raises(ConfigError, match="in use"), owned(str(path)):
                bind("", 0, str(path))
    assert [f.name for f in tmp_path.iterdir()] == ["s"]


def test_a_unix_socket_of_a_server_that_loads_is_its_own(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with owned(path), bind("", 0, path):
        inode = os.stat(path).st_ino
        with pytest.raises(ConfigError, match=f"cannot listen at {path}: another server"):
            owned(path).__enter__()
        assert os.stat(path).st_ino == inode
    assert not list(tmp_path.iterdir())
    with owned(path):  # it has been given up
        pass


def test_the_lock_of_a_server_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "s.lock").touch()
    with owned(str(tmp_path / "s")):
        pass
    assert not list(tmp_path.iterdir())


def test_an_owner_that_was_robbed_leaves_the_next_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with contextlib.ExitStack() as next_one:
        with owned(path), bind("", 0, path):
            os.unlink(path)
            os.unlink(path + ".lock")
            next_one.enter_context(owned(path))
            next_one.enter_context(bind("", 0, path))
        assert sorted(f.name for f in tmp_path.iterdir()) == ["s", "s.lock"]
    assert not list(tmp_path.iterdir())


def test_where_no_lock_can_be(tmp_path: Path) -> None:
    (tmp_path / "s.lock").symlink_to(tmp_path / "elsewhere")
    for path, why in (("s", "levels of symbolic links"), ("no/s", "No such file")):
        with pytest.raises(ConfigError, match=f"cannot listen at .*{path}: .*{path}.lock: .*{why}"):
            owned(str(tmp_path / path)).__enter__()
    assert not (tmp_path / "elsewhere").exists()


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
