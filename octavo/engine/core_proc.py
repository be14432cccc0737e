"""The engine core in a process of its own: `python -m octavo.engine.core_proc INDEX ADDRESS…`.

One thread drives everything: take what the front ends sent, run a step, send what it brought.
Another, with sockets of its own, sends a heartbeat, so that a long step does not look like death
(once a second: more often, the compute threads would feel it).

There is a front end at each address. The first owns this process and says what it shall be: its
standard input is a pipe that only that one holds, and when that closes, for whatever reason, this
process ends. Signals are the front end's business. The others attach when they are ready, and again
when they have been started anew (`wire.Attach`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, cast, get_args

import msgspec
import zmq

from octavo.contracts.messages import EngineOutput, EngineOutputs, FinishReason
from octavo.contracts.pause_mode import PauseMode
from octavo.contracts.structured_outputs import GrammarKind, GrammarSource
from octavo.engine import wire
from octavo.engine.core import EngineCore
from octavo.engine.core_sockets import FrontEndSockets
from octavo.errors import DuplicateIdError, EngineDeadError, OctavoError, RequestError
from octavo.log import configure_logging, get_logger
from octavo.structured.vocabulary import Vocabulary

logger = get_logger("octavo.engine.core_proc")  # it is run as __main__

_OWNER = 0
"""Index of the front end that started this process."""
_STDIN = 0
_POLL_SECONDS = 1.0
_PARENT_GRACE_SECONDS = 2.0
"""How long a step in progress may go on after the front end is gone, or what follows the last."""


class CoreProcess:
    """The loop between the front ends' sockets and one EngineCore.

    Args:
        addresses: where the front ends listen; the first one's owns this process.
        index: which of the front ends' cores this is; the sockets' identity.
    """

    def __init__(self, addresses: Sequence[str], index: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._addresses = addresses
        self._identity = index.to_bytes(2, "little")
        self._sockets = FrontEndSockets(
            self._context, addresses, self._identity, linger_ms=1000, wake_fd=_STDIN
        )
        self._info: wire.CoreInfo
        self._stopping = threading.Event()
        self._exit_status = 1
        self._turn = 0

    def run(self) -> int:
        """Serve until told to stop. Returns the exit status: 0 unless something broke."""
        threading.Thread(target=self._end_with_parent, daemon=True).start()
        self._sockets.send(_OWNER, wire.Hello(pid=os.getpid()))
        core: EngineCore | None = None
        try:
            core = self._start()
            if core is not None:
                self._exit_status = self._serve(core)
            return self._exit_status
        finally:
            if core is not None:
                core.shutdown()
            self._sockets.close()
            self._context.term()

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
                    executor_of(start.config, files),
                    vocabulary=partial(_vocabulary, start),
                )
        except OctavoError as error:
            self._fail(type(error).__name__, str(error))
            return None
        except Exception as error:
            logger.exception("the engine could not be started")
            self._fail("OctavoError", f"{type(error).__name__}: {error}")
            return None
        kv_dtype = getattr(core.info.kv_cache_config.groups[0].spec, "dtype", None)
        self._info = wire.CoreInfo(
            config=core.config,
            memory_plan=core.info.memory_plan,
            vocab_size=core.info.vocab_size,
            hidden_size=core.info.hidden_size,
            kv_cache_dtype=kv_dtype.value if kv_dtype is not None else "none",
        )
        self._sockets.send(_OWNER, wire.Ready(info=self._info))
        return core

    def _fail(self, error: str, message: str) -> None:
        self._sockets.broadcast(wire.Failed(error=error, message=message))

    def _await_start(self) -> wire.Start | None:
        while not self._stopping.is_set():
            if self._sockets.poll(_OWNER, _POLL_SECONDS):
                message = wire.to_core_decoder.decode(self._sockets.receive_from(_OWNER))
                return message if isinstance(message, wire.Start) else None
        return None

    # ---------------------------------------------------------------- the loop

    def _serve(self, core: EngineCore) -> int:
        heart = threading.Thread(target=self._beat, daemon=True)
        heart.start()
        try:
            while not self._stopping.is_set():
                self._turn += 1
                if not core.has_work() and not self._sockets.poll_all(_POLL_SECONDS):
                    continue
                self._take_messages(core)
                # A message may have changed the counters without a step.
                outputs = core.step() if core.has_work() else []
                self._sockets.send_outputs(
                    EngineOutputs(
                        outputs=outputs, stats=core.stats(), block_times=core.take_block_times()
                    )
                )
        except EngineDeadError as error:
            self._sockets.broadcast(wire.Dead(message=str(error)))
            return 1
        finally:
            self._stopping.set()
            heart.join()
        return 0

    def _take_messages(self, core: EngineCore) -> None:
        """All that has arrived. A broken message harms at most the request that it names."""
        for index, frame in self._sockets.receive():
            try:
                message = wire.to_core_decoder.decode(frame)
            except msgspec.DecodeError as error:
                logger.warning("a message of %d bytes was dropped: %s", len(frame), error)
                continue
            if isinstance(message, wire.Add):
                self._add(core, index, message)
            elif isinstance(message, wire.Abort):
                core.abort_requests([self._sockets.core_id(index, i) for i in message.request_ids])
            elif isinstance(message, wire.Call):
                self._sockets.send(index, _called(core, message))
            elif isinstance(message, wire.Attach) and index != _OWNER:
                self._attach(core, index)
            elif isinstance(message, wire.Shutdown):
                if index == _OWNER:  # the others say it at their own end
                    self._stopping.set()
            else:
                logger.warning("an unexpected %s was dropped", type(message).__name__)

    def _add(self, core: EngineCore, index: int, message: wire.Add) -> None:
        try:
            request = wire.request_decoder.decode(message.request)
            if request.request_id != message.request_id:
                raise RequestError("the request's id is not that of its envelope")
            self._sockets.rename(index, request)
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
            self._sockets.send(index, wire.Outputs(outputs=EngineOutputs(outputs=[failed])))

    def _attach(self, core: EngineCore, index: int) -> None:
        """A front end that has just started. What an earlier one at its address asked for is of no
        use to anybody."""
        core.abort_requests(self._sockets.ids_of(index, core.request_ids()))
        self._sockets.attach(index)
        self._sockets.send(index, wire.Ready(info=self._info))

    def _beat(self) -> None:
        """Send heartbeats until the end. Sockets belong to one thread: this one has its own."""
        identity = self._identity + b"-heartbeat"
        sockets = FrontEndSockets(self._context, self._addresses, identity, linger_ms=0)
        for index in range(1, len(self._addresses)):
            sockets.attach(index)
        while not self._stopping.wait(wire.HEARTBEAT_SECONDS):
            sockets.broadcast(wire.Heartbeat(turn=self._turn))
        sockets.close()

    def _end_with_parent(self) -> None:
        """Wait for the end of standard input; then stop, by force if a step does not end."""
        while os.read(_STDIN, 4096):
            pass
        with contextlib.suppress(OSError):  # what a front end that was killed could not tidy up
            folder = Path(self._addresses[_OWNER].removeprefix("ipc://")).parent
            for socket_file in folder.glob("*.sock"):
                socket_file.unlink()
            folder.rmdir()
        self._stopping.set()
        time.sleep(_PARENT_GRACE_SECONDS)
        os._exit(self._exit_status)


def _called(core: EngineCore, call: wire.Call) -> wire.Result:
    """What came of one of the methods that front ends may call."""
    if call.method == "reset_prefix_cache":
        return wire.Result(call_id=call.call_id, value=core.reset_prefix_cache())
    if call.method == "observe":
        numbers = {name: n for name, n in call.arguments.items() if isinstance(n, int)}
        view = core.observe(numbers.get("after_step", -1), numbers.get("block_id"))
        return wire.Result(call_id=call.call_id, value=view)
    if call.method == "pause" and (mode := call.arguments.get("mode")) in get_args(PauseMode):
        core.pause(cast("PauseMode", mode))
        return wire.Result(call_id=call.call_id, value=True)
    if call.method == "resume":
        core.resume()
        return wire.Result(call_id=call.call_id, value=True)
    if call.method == "is_paused":
        return wire.Result(call_id=call.call_id, value=core.is_paused())
    if call.method == "has_begun_requests":
        return wire.Result(call_id=call.call_id, value=core.scheduler.has_begun_requests())
    if call.method in ("check_grammar", "forget_grammar"):
        return _called_of_grammar(core, call)
    return wire.Result(call_id=call.call_id, error=f"unknown method {call.method[:64]!r}")


def _called_of_grammar(core: EngineCore, call: wire.Call) -> wire.Result:
    try:
        asked = msgspec.convert(call.arguments, _GrammarArguments)
    except msgspec.ValidationError as error:
        return wire.Result(call_id=call.call_id, error=f"{call.method}: {error}")
    grammar = GrammarSource(asked.kind, asked.text)
    if call.method == "forget_grammar":
        core.forget_grammar(grammar)
        return wire.Result(call_id=call.call_id, value=True)
    return wire.Result(call_id=call.call_id, value=core.check_grammar(grammar, asked.first))


class _GrammarArguments(msgspec.Struct):
    """Arguments of `check_grammar` and `forget_grammar`."""

    kind: GrammarKind
    text: str
    first: list[Annotated[int, msgspec.Meta(ge=0, lt=2**31)]] | None = None


def _vocabulary(start: wire.Start, vocab_size: int) -> Vocabulary:
    """The model's vocabulary, read anew: only grammars need it in this process."""
    from octavo.engine.end_tokens import vocabulary_of
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
    return CoreProcess(sys.argv[2:], int(sys.argv[1])).run()


if __name__ == "__main__":
    sys.exit(main())
