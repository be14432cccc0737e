"""What the user sees when the server is ready."""

from __future__ import annotations

import json
import os
import shlex
import socket
import time

from octavo.contracts.kv_spec import MemoryPlan
from octavo.entrypoints.openai.sockets import shown_address
from octavo.entrypoints.openai.state import Server
from octavo.entrypoints.stdout import print_now
from octavo.log import get_logger
from octavo.version import __version__
from octavo.worker.memory import format_plan

logger = get_logger(__name__)


def banner(server: Server, plan: MemoryPlan, sock: socket.socket) -> str:
    """Where the server is, a command to try it, and how its memory is shared out."""
    scheme = "http" if server.config.ssl_certfile is None else "https"
    address = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        shown, url, curl = (
            f"unix:{address}",
            f"{scheme}://localhost",
            f"curl --unix-socket {address}",
        )
    else:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address[0], address[0])
        shown = url = f"{scheme}://{shown_address(host, address[1])}"
        curl = "curl"
    auth = "-H 'Authorization: Bearer KEY' " if server.config.has_keys else ""
    body = {
        "model": next(iter(server.models)),
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
    }
    return "\n".join(
        [
            f"Octavo {__version__} serves {', '.join(server.models)} at {shown}, "
            f"ready {seconds_since_process_start():.2f} s after the start",
            "",
            f"  {curl} {url}/v1/chat/completions {auth}\\",
            "    -H 'Content-Type: application/json' \\",
            f"    -d {shlex.quote(json.dumps(body))}",
            "",
            format_plan(plan),
        ]
    )


def announce(text: str) -> None:
    """Print it. A server that cannot serves all the same."""
    try:
        print_now(text)
    except OSError as error:
        logger.warning("the address cannot be printed: %s", error.strerror)


def seconds_since_process_start() -> float:
    """How long this process has been there, to 10 ms; on systems without /proc its CPU time."""
    try:
        with open("/proc/self/stat", "rb") as f:
            ticks = int(f.read().rpartition(b")")[2].split()[19])
    except OSError:
        return time.process_time()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
