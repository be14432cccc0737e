"""The listening socket."""

from __future__ import annotations

import contextlib
import os
import socket
import stat

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
            sock = socket.socket(socket.AF_UNIX)
            _remove_socket(uds)
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
        raise ConfigError(f"cannot listen at {uds or f'{host}:{port}'}: {error}") from None
    return sock


def _remove_socket(path: str) -> None:
    """Remove the socket that an earlier server left; anything else in its place stays."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
