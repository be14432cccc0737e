"""The sockets of a core process: one to each front end that it serves.

A core takes request ids as unique per front end, so two of them may use the same one. Where there
are several, the core itself knows requests by `INDEX:ID`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import zmq

from octavo.contracts.codec import Encoder
from octavo.contracts.messages import EngineOutput, EngineOutputs, EngineRequest
from octavo.engine import wire


class FrontEndSockets:
    """What one thread of a core process says to its front ends, and hears of them.

    Args:
        addresses: where the front ends listen, in order of their index.
        identity: the core's, by which a front end knows it.
        linger_ms: how long the last messages may take to leave after `close`.
        wake_fd: a file whose end ends a `poll_all`, too.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        addresses: Sequence[str],
        identity: bytes,
        *,
        linger_ms: int,
        wake_fd: int | None = None,
    ) -> None:
        self._encoder = Encoder()
        self._sockets = [_connect(context, a, identity, linger_ms) for a in addresses]
        self._attached = {0}  # the others may not be there yet, and messages would pile up
        self._poller = zmq.Poller()
        for socket in self._sockets:
            self._poller.register(socket, zmq.POLLIN)
        if wake_fd is not None:
            self._poller.register(wake_fd, zmq.POLLIN)

    def attach(self, index: int) -> None:
        """A further front end is there now."""
        self._attached.add(index)

    def send(self, index: int, message: wire.FromCore) -> None:
        """Tell one front end."""
        self._sockets[index].send(self._encoder.encode(message))

    def broadcast(self, message: wire.FromCore) -> None:
        """Tell all that are there."""
        frame = self._encoder.encode(message)
        for index in self._attached:
            self._sockets[index].send(frame)

    def send_outputs(self, outputs: EngineOutputs) -> None:
        """Each request's output to the front end that it came from; the counters to all."""
        if len(self._sockets) == 1:
            self.send(0, wire.Outputs(outputs=outputs))
            return
        shares: list[list[EngineOutput]] = [[] for _ in self._sockets]
        for output in outputs.outputs:
            name, _, output.request_id = output.request_id.partition(":")
            shares[int(name)].append(output)
        for index in self._attached:
            outputs.outputs = shares[index]
            self.send(index, wire.Outputs(outputs=outputs))

    def poll(self, index: int, seconds: float) -> bool:
        """Wait until one front end has said something."""
        return bool(self._sockets[index].poll(int(1000 * seconds)))

    def poll_all(self, seconds: float) -> bool:
        """Wait until any has, or `wake_fd` has ended."""
        return bool(self._poller.poll(int(1000 * seconds)))

    def receive_from(self, index: int) -> bytes:
        """The next frame of one front end, waiting for it."""
        return self._sockets[index].recv()

    def receive(self) -> Iterator[tuple[int, bytes]]:
        """(front end, frame) of all that has arrived."""
        for index, socket in enumerate(self._sockets):
            while True:
                try:
                    frame = socket.recv(zmq.NOBLOCK)
                except zmq.Again:
                    break
                yield index, frame

    def core_id(self, index: int, request_id: str) -> str:
        """The core's name for a front end's request."""
        return request_id if len(self._sockets) == 1 else f"{index}:{request_id}"

    def rename(self, index: int, request: EngineRequest) -> None:
        """Give a front end's request, and the one whose blocks it shares, the core's names."""
        request.request_id = self.core_id(index, request.request_id)
        if request.fork_of is not None:
            request.fork_of = self.core_id(index, request.fork_of)

    def ids_of(self, index: int, core_ids: Sequence[str]) -> list[str]:
        """Those of the core's names that are a front end's requests."""
        if len(self._sockets) == 1:
            return list(core_ids)
        return [i for i in core_ids if i.startswith(f"{index}:")]

    def close(self) -> None:
        """Close the sockets."""
        for socket in self._sockets:
            socket.close()


def _connect(
    context: zmq.Context[zmq.Socket[bytes]], address: str, identity: bytes, linger_ms: int
) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, identity)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, linger_ms)
    socket.connect(address)
    return socket
