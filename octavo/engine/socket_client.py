"""The client of an engine core in a process of its own: handshake, messages, signs of life."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import zmq.asyncio

from octavo import errors
from octavo.config.engine import EngineConfig
from octavo.contracts.codec import Encoder
from octavo.contracts.engine_view import EngineView
from octavo.contracts.messages import EngineOutputs, EngineRequest
from octavo.contracts.pause_mode import PauseMode
from octavo.contracts.structured_outputs import GRAMMAR_PARAM, GrammarSource
from octavo.engine import wire
from octavo.engine.core_client import AsyncCoreClient
from octavo.engine.core_launch import CoreLink
from octavo.errors import EngineDeadError, EngineUnresponsiveError, OctavoError, RequestError

Message = TypeVar("Message", wire.Hello, wire.Ready)

_Answer = bool | str | EngineView | None
"""Of a `wire.Call`."""

MAX_SILENT_BEATS = 5
"""A core of which nothing was heard for more beats than this is unresponsive."""

_Arguments = dict[str, int | str | list[int]]

_LEAST_GRAMMAR_PAUSE, _MOST_GRAMMAR_PAUSE = 0.002, 0.064
"""Seconds between two questions whether a grammar is compiled; they double."""

_CONNECT_SECONDS = 0.05
"""Between two attempts to reach a core that has not connected yet."""

_LAST_WORDS_SECONDS = 0.5
"""How long to wait for what a core may have said before it ended."""


class SocketClient(AsyncCoreClient):
    """One core process.

    `launch`, then `ready` (or `attach`, if another front end launched it), then the rest. Silence
    is counted in turns of this event loop and lack of progress in beats of the core's, not in
    seconds of a clock: when both processes were suspended, neither has been silent.

    Args:
        link: the process, and the socket that it connects to.

    Attributes:
        info: what the core says of itself, once it is ready.
    """

    info: wire.CoreInfo

    def __init__(self, link: CoreLink) -> None:
        loop = asyncio.get_running_loop()
        self._link = link
        self._socket = zmq.asyncio.Socket.from_socket(link.socket)
        self._encoder = Encoder()
        self._exited: asyncio.Future[int] = loop.create_future()
        link.watch(lambda status: _call_soon(loop, _set_result, self._exited, status))
        self._receiving: asyncio.Future[list[bytes]] | None = None
        self._calls: dict[int, asyncio.Future[_Answer]] = {}
        self._num_calls = 0
        self._forgetting: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly
        self._dead: EngineDeadError | None = None
        self._num_silent_beats = 0
        self._num_stuck_beats = 0
        self._core_turn = -1
        self._watcher: asyncio.Task[None] | None = None

    # ---------------------------------------------------------------- start

    async def launch(self, config: EngineConfig, model_path: str) -> None:
        """Tell the core what to be, as soon as it listens. Raises EngineDeadError."""
        await self._handshake(wire.Hello)
        await self._send(wire.Start(config=config, model_path=model_path))

    async def ready(self) -> None:
        """Wait until the core takes requests.

        Raises:
            ConfigError, MemoryPlanError, ModelError: it cannot be what it was told to be.
            EngineDeadError: its process ended.
        """
        self._begin(await self._handshake(wire.Ready))

    async def attach(self) -> None:
        """Become a further front end of a core that has been, or is being, launched by another, and
        wait until it takes requests. Raises as `ready`."""
        while True:
            try:
                await self._send(wire.Attach())
                break
            except EngineDeadError:  # or it has not connected yet
                if self._exited.done():
                    raise
                await asyncio.sleep(_CONNECT_SECONDS)
        message: wire.FromCore = wire.Heartbeat(turn=0)
        while not isinstance(message, wire.Ready):  # what an earlier front end may have left unread
            message = await self._receive()
        self._begin(message)

    def _begin(self, ready: wire.Ready) -> None:
        self.info = ready.info
        self._exited.add_done_callback(self._core_exited)
        self._watcher = asyncio.create_task(self._watch())

    async def _handshake(self, kind: type[Message]) -> Message:
        message = await self._receive()
        if not isinstance(message, kind):
            raise EngineDeadError(f"the engine core said {type(message).__name__} out of turn")
        return message

    async def _receive(self) -> wire.FromCore:
        """The next message before the core is ready. Raises what it says that it failed of."""
        receive: asyncio.Future[Any] = asyncio.ensure_future(self._socket.recv_multipart())
        await asyncio.wait((receive, self._exited), return_when=asyncio.FIRST_COMPLETED)
        if not receive.done():
            try:
                await asyncio.wait_for(receive, _LAST_WORDS_SECONDS)
            except asyncio.TimeoutError:
                raise EngineDeadError(
                    f"the engine core ended with status {self._exited.result()} before it was ready"
                ) from None
        message = wire.from_core_decoder.decode(receive.result()[1])
        if isinstance(message, wire.Failed):
            raise getattr(errors, message.error, OctavoError)(message.message)
        return message

    # ---------------------------------------------------------------- towards the core

    async def add_request(self, request: EngineRequest) -> None:
        self._ensure_alive()
        body = msgspec.Raw(self._encoder.encode(request))
        await self._send(wire.Add(request_id=request.request_id, request=body))

    async def abort_requests(self, request_ids: Sequence[str]) -> None:
        if request_ids and self._dead is None:
            await self._send(wire.Abort(request_ids=list(request_ids)))

    async def reset_prefix_cache(self) -> bool:
        return bool(await self._call("reset_prefix_cache"))

    async def pause(self, mode: PauseMode) -> None:
        await self._call("pause", {"mode": mode})

    async def resume(self) -> None:
        await self._call("resume")

    async def is_paused(self) -> bool:
        return bool(await self._call("is_paused"))

    async def has_begun_requests(self) -> bool:
        return bool(await self._call("has_begun_requests"))

    async def observe(self, after_step: int = -1, block_id: int | None = None) -> EngineView:
        arguments: _Arguments = {"after_step": after_step}
        if block_id is not None:
            arguments["block_id"] = block_id
        view = await self._call("observe", arguments)
        if not isinstance(view, EngineView):
            raise OctavoError("the engine core did not say what it does")
        return view

    async def check_grammar(self, grammar: GrammarSource, first: Sequence[int] | None) -> None:
        arguments: _Arguments = {
            "kind": grammar.kind,
            "text": grammar.text,
            "prefix": grammar.prefix,
        }
        asked = arguments if first is None else {**arguments, "first": list(first)}
        pause = _LEAST_GRAMMAR_PAUSE
        try:
            while (error := await self._call("check_grammar", asked)) is None:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MOST_GRAMMAR_PAUSE)
        except asyncio.CancelledError:
            # Nothing may be awaited here.
            task = asyncio.ensure_future(self._forget_grammar(arguments))
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)
            raise
        if error:
            raise RequestError(str(error), param=GRAMMAR_PARAM)

    async def _forget_grammar(self, grammar: _Arguments) -> None:
        with contextlib.suppress(EngineDeadError):
            await self._call("forget_grammar", grammar)

    async def _call(self, method: str, arguments: _Arguments | None = None) -> _Answer:
        """Call one of the core's methods (`wire.Call`). Raises OctavoError: it failed there."""
        self._ensure_alive()
        self._num_calls += 1
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._calls[self._num_calls] = answer
        call = wire.Call(call_id=self._num_calls, method=method, arguments=arguments or {})
        await self._send(call)
        return await answer

    async def _send(self, message: wire.ToCore) -> None:
        """Raises EngineDeadError: it cannot be sent; whoever watches the core may not know yet."""
        try:
            await self._socket.send_multipart([self._link.identity, self._encoder.encode(message)])
        except zmq.ZMQError as error:
            raise EngineDeadError(f"the engine core cannot be reached: {error}") from None

    # ---------------------------------------------------------------- from the core

    async def get_outputs(self) -> EngineOutputs:
        while True:
            self._ensure_alive()
            self._receiving = asyncio.ensure_future(self._socket.recv_multipart())
            try:
                _, frame = await self._receiving
            finally:
                self._receiving = None
            self._num_silent_beats = 0
            message = wire.from_core_decoder.decode(frame)
            if isinstance(message, wire.Outputs):
                return message.outputs
            if isinstance(message, wire.Heartbeat):
                is_stuck = message.turn == self._core_turn
                self._num_stuck_beats = self._num_stuck_beats + 1 if is_stuck else 0
                self._core_turn = message.turn
            elif isinstance(message, wire.Result):
                self._take_result(message)
            elif isinstance(message, wire.Dead):
                self._die(EngineDeadError(message.message))

    def _take_result(self, result: wire.Result) -> None:
        answer = self._calls.pop(result.call_id, None)
        if answer is None or answer.done():
            return
        if result.error is not None:
            answer.set_exception(OctavoError(result.error))
        else:
            answer.set_result(result.value)

    # ---------------------------------------------------------------- life and death

    def check_health(self) -> None:
        self._ensure_alive()
        if self._num_silent_beats > MAX_SILENT_BEATS:
            seconds = self._num_silent_beats * wire.HEARTBEAT_SECONDS
            raise EngineUnresponsiveError(
                f"the engine core has not been heard of for {seconds:.0f} s"
            )

    async def _watch(self) -> None:
        """Count the core's missing beats; call it dead when it has stood still for too long."""
        limit = self.info.config.device.engine_iteration_timeout
        while self._dead is None:
            await asyncio.sleep(wire.HEARTBEAT_SECONDS)
            self._num_silent_beats += 1
            num_beats = self._num_silent_beats + self._num_stuck_beats
            if limit and num_beats * wire.HEARTBEAT_SECONDS > limit:
                self._die(
                    EngineDeadError(
                        f"the engine core has made no progress for {limit:g} s "
                        "(engine_iteration_timeout)"
                    )
                )

    def _core_exited(self, exited: asyncio.Future[int]) -> None:
        self._die(EngineDeadError(f"the engine core ended with status {exited.result()}"))

    def _die(self, error: EngineDeadError) -> None:
        """Keep the first cause, and tell everyone who waits."""
        if self._dead is not None:
            return
        self._dead = error
        for waiting in (self._receiving, *self._calls.values()):
            if waiting is not None and not waiting.done():
                waiting.set_exception(EngineDeadError(str(error)))
        self._calls.clear()

    def _ensure_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(str(self._dead))

    async def shutdown(self) -> None:
        self._die(EngineDeadError("the engine was shut down"))
        if self._watcher is not None:
            self._watcher.cancel()
        with contextlib.suppress(EngineDeadError):  # closed already
            await self._send(wire.Shutdown())
        with contextlib.suppress(zmq.ZMQError):
            # The loop would go on watching the descriptor's number, whoever has it next.
            asyncio.get_running_loop().remove_reader(self._socket.FD)
        await asyncio.to_thread(self._link.close)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *args: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop may be closed already
        loop.call_soon_threadsafe(function, *args)


def _set_result(future: asyncio.Future[int], value: int) -> None:
    if not future.done():
        future.set_result(value)
