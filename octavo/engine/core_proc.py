"""The engine core in a process of its own: `python -m octavo.engine.core_proc ADDRESS INDEX`.

One thread drives everything: take what the front end sent, run a step, send what it brought.
Another, with a socket of its own, sends a heartbeat, so that a long step does not look like death
(once a second: more often, the compute threads would feel it).

The front end owns this process: its standard input is a pipe that only the front end holds, and
when that closes, for whatever reason, this process ends. Signals are the front end's business.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import msgspec
import zmq

from octavo.contracts.codec import Encoder
from octavo.contracts.engine_view import EngineView
from octavo.contracts.messages import EngineOutput, EngineOutputs, FinishReason
from octavo.engine import wire
from octavo.engine.core import EngineCore
from octavo.errors import DuplicateIdError, EngineDeadError, OctavoError, RequestError
from octavo.log import configure_logging, get_logger
from octavo.structured.vocabulary import Vocabulary

logger = get_logger(__name__)

_POLL_SECONDS = 1.0
_PARENT_GRACE_SECONDS = 2.0
"""How long a step in progress may go on after the front end is gone."""


class CoreProcess:
    """The loop between one socket and one EngineCore.

    Args:
        address: where the front end listens.
        index: which of the front end's cores this is; the socket's identity.
    """

    def __init__(self, address: str, index: int) -> None:
        self._context = zmq.Context()
        self._address = address
        self._identity = index.to_bytes(2, "little")
        self._socket = self._connect(self._identity, linger_ms=1000)
        self._encoder = Encoder()
        self._stopping = threading.Event()
        self._turn = 0

    def run(self) -> int:
        """Serve until told to stop. Returns the exit status: 0 unless something broke."""
        threading.Thread(target=self._end_with_parent, daemon=True).start()
        self._send(wire.Hello(pid=os.getpid()))
        core: EngineCore | None = None
        try:
            core = self._start()
            return 1 if core is None else self._serve(core)
        finally:
            if core is not None:
                core.shutdown()
            self._socket.close()
            self._context.term()

    def _connect(self, identity: bytes, *, linger_ms: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, identity)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, linger_ms)
        socket.connect(self._address)
        return socket

    # ---------------------------------------------------------------- start

    def _start(self) -> EngineCore | None:
        start = self._await_start()
        if start is None:
            return None
        try:
            from octavo.executor.registry import executor_of
            from octavo.models.files import resolve_model

            load_format = start.config.model.load_format
            with contextlib.closing(
                resolve_model(start.model_path, load_format=load_format)
            ) as files:
                core = EngineCore(
                    start.config,
                    executor_of(start.config, files),
                    vocabulary=partial(_vocabulary, start),
                )
        except OctavoError as error:
            self._send(wire.Failed(error=type(error).__name__, message=str(error)))
            return None
        except Exception as error:
            logger.exception("the engine could not be started")
            self._send(wire.Failed(error="OctavoError", message=f"{type(error).__name__}: {error}"))
            return None
        kv_dtype = getattr(core.info.kv_cache_config.groups[0].spec, "dtype", None)
        info = wire.CoreInfo(
            config=core.config,
            memory_plan=core.info.memory_plan,
            vocab_size=core.info.vocab_size,
            kv_cache_dtype=kv_dtype.value if kv_dtype is not None else "none",
        )
        self._send(wire.Ready(info=info))
        return core

    def _await_start(self) -> wire.Start | None:
        while not self._stopping.is_set():
            if self._socket.poll(int(1000 * _POLL_SECONDS)):
                message = wire.to_core_decoder.decode(self._socket.recv())
                if isinstance(message, wire.Start):
                    return message
                return None
        return None

    # ---------------------------------------------------------------- the loop

    def _serve(self, core: EngineCore) -> int:
        heart = threading.Thread(target=self._beat, daemon=True)
        heart.start()
        try:
            while not self._stopping.is_set():
                self._turn += 1
                if not core.has_work() and not self._socket.poll(int(1000 * _POLL_SECONDS)):
                    continue
                self._take_messages(core)
                if core.has_work():
                    self._send_outputs(core.step())
                else:  # a message may have changed the counters without a step
                    self._send_outputs(EngineOutputs(stats=core.stats()))
        except EngineDeadError as error:
            self._send(wire.Dead(message=str(error)))
            return 1
        finally:
            self._stopping.set()
            heart.join()
        return 0

    def _take_messages(self, core: EngineCore) -> None:
        """All that has arrived. A broken message harms at most the request that it names."""
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                message = wire.to_core_decoder.decode(frame)
            except msgspec.DecodeError as error:
                logger.warning("a message of %d bytes was dropped: %s", len(frame), error)
                continue
            if isinstance(message, wire.Add):
                self._add(core, message)
            elif isinstance(message, wire.Abort):
                core.abort_requests(message.request_ids)
            elif isinstance(message, wire.Call):
                self._call(core, message)
            elif isinstance(message, wire.Shutdown):
                self._stopping.set()
            else:
                logger.warning("an unexpected %s was dropped", type(message).__name__)

    def _add(self, core: EngineCore, message: wire.Add) -> None:
        try:
            request = wire.request_decoder.decode(message.request)
            if request.request_id != message.request_id:
                raise RequestError("the request's id is not that of its envelope")
            core.add_request(request)
        except DuplicateIdError as error:
            # An answer could not be told from one to the first request of this id.
            logger.warning("a request was dropped: %s", error)
        except (msgspec.DecodeError, RequestError) as error:
            failed = EngineOutput(
                request_id=message.request_id,
                finish_reason=FinishReason.ERROR,
                error=f"the engine core refused the request: {error}",
            )
            self._send_outputs(EngineOutputs(outputs=[failed]))

    def _call(self, core: EngineCore, message: wire.Call) -> None:
        """Call one of the methods that front ends may call."""
        value: bool | EngineView
        if message.method == "reset_prefix_cache":
            value = core.reset_prefix_cache()
        elif message.method == "observe":
            known = message.arguments
            value = core.observe(known.get("after_step", -1), known.get("block_id"))
        else:
            error = f"unknown method {message.method[:64]!r}"
            self._send(wire.Result(call_id=message.call_id, error=error))
            return
        self._send(wire.Result(call_id=message.call_id, value=value))

    def _beat(self) -> None:
        """Send heartbeats until the end. A socket belongs to one thread: this one has its own."""
        encoder = Encoder()
        socket = self._connect(self._identity + b"-heartbeat", linger_ms=0)
        while not self._stopping.wait(wire.HEARTBEAT_SECONDS):
            socket.send(encoder.encode(wire.Heartbeat(turn=self._turn)))
        socket.close()

    def _send_outputs(self, outputs: EngineOutputs) -> None:
        self._send(wire.Outputs(outputs=outputs))

    def _send(self, message: wire.FromCore) -> None:
        self._socket.send(self._encoder.encode(message))

    def _end_with_parent(self) -> None:
        """Wait for the end of standard input; then stop, by force if a step does not end."""
        while os.read(0, 4096):
            pass
        with contextlib.suppress(OSError):  # what a front end that was killed could not tidy up
            socket_file = Path(self._address.removeprefix("ipc://"))
            socket_file.unlink()
            socket_file.parent.rmdir()
        self._stopping.set()
        time.sleep(_PARENT_GRACE_SECONDS)
        os._exit(1)


def _vocabulary(start: wire.Start, vocab_size: int) -> Vocabulary:
    """The model's vocabulary, read anew: only grammars need it in this process."""
    from octavo.engine.input_processor import vocabulary_of
    from octavo.engine.tokenizer import tokenizer_of
    from octavo.models.files import resolve_model

    model = start.config.model
    with contextlib.closing(
        resolve_model(start.model_path, load_format=model.load_format)
    ) as files:
        tokenizer = tokenizer_of(model, files)
        return vocabulary_of(tokenizer, files.generation_config, vocab_size)


def main() -> int:
    """Entry point of the core process."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    configure_logging()
    return CoreProcess(sys.argv[1], int(sys.argv[2])).run()


if __name__ == "__main__":
    sys.exit(main())
