"""The listening sockets."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Iterator

from octavo.errors import ConfigError


def bind(host: str, port: int, uds: str | None = None) -> socket.socket:
    """The listening socket, bound but not listening: connections are refused until the server is
    ready.

    Args:
        port: 0 takes a free one.
        uds: path of a Unix socket, instead of host and port.

    Raises:
        ConfigError: the address cannot be used.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"cannot listen at port {port}: ports are 0…65535")
    sock = None
    try:
        if uds is not None:
            _remove_socket(uds)
            sock = socket.socket(socket.AF_UNIX)
            sock.bind(uds)
            return sock
        [family, kind, proto, _, address], *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        sock = socket.socket(family, kind, proto)  # asyncio turns Nagle off only where it sees TCP
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise ConfigError(f"cannot listen at {uds or shown_address(host, port)}: {error}") from None
    return sock


def share(sock: socket.socket, count: int) -> list[socket.socket]:
    """As many sockets at the address of one that is bound: the kernel spreads new connections over
    those that listen. (Several processes accepting from one socket would not do: after a burst, the
    first to wake takes all.) Of a Unix socket, which cannot be shared so, it is the same one.

    Raises:
        ConfigError: somebody else took the address in this very moment.
    """
    if count == 1 or sock.family == socket.AF_UNIX:
        return [sock, *(sock.dup() for _ in range(count - 1))]
    address = sock.getsockname()
    sock.close()  # it was alone at its address, which those that share one cannot make sure of
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            sockets.append(socket.socket(sock.family, sock.type, sock.proto))
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sockets[-1].bind(address)
    except OSError as error:
        for opened in sockets:
            opened.close()
        raise ConfigError(f"cannot listen at {shown_address(*address[:2])}: {error}") from None
    return sockets


def shown_address(host: str, port: int) -> str:
    """Host and port as a URL has them: IPv6 in brackets."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


@contextlib.contextmanager
def owned(path: str | None) -> Iterator[None]:
    """Let no other server take the Unix socket at `path`, from before it is bound, when nobody
    listens there yet, to the end, when it is removed. The kernel gives up the lock, a file beside
    it, of a server that is killed.

    Raises:
        ConfigError: it is another server's.
    """
    if path is None:
        yield
        return
    lock_path = f"{path}.lock"
    fd = _lock(path, lock_path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(fd), os.stat(lock_path)):
                _remove_socket(path)
                os.unlink(lock_path)
        os.close(fd)


def _lock(path: str, lock_path: str) -> int:
    """The descriptor of the file at `lock_path`, locked."""
    while True:
        try:
            fd = os.open(lock_path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot listen at {path}: {lock_path}: {error.strerror}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(lock_path)):
                return fd
        except FileNotFoundError:  # its owner has removed it
            pass
        except OSError as error:
            os.close(fd)
            reason = "another server has it" if isinstance(error, BlockingIOError) else error
            raise ConfigError(f"cannot listen at {path}: {reason}") from None
        os.close(fd)


def _remove_socket(path: str) -> None:
    """Remove the socket that an earlier server left. One where somebody listens stays, and so does
    anything else in its place."""
    with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as client:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            client.setblocking(False)
            try:
                client.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
            except BlockingIOError:  # somebody listens, and has much to do
                pass
