"""AsyncLLM: the engine as a server drives it. An async generator per request, the core in its own
process; everything here runs on one event loop, tokenizing and templates in threads beside it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import zmq.asyncio

from octavo import errors
from octavo.config.engine import EngineConfig
from octavo.contracts.codec import Encoder
from octavo.contracts.kv_spec import BLOCK_SIZE
from octavo.contracts.messages import (
    EngineOutputs,
    EngineRequest,
    FinishReason,
    RequestOutput,
    SchedulerStats,
)
from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.engine import wire
from octavo.engine.core_launch import CoreHandle
from octavo.engine.input_processor import InputProcessor, PromptType
from octavo.engine.metrics import CacheInfo, EngineMetrics
from octavo.engine.output_processor import OutputProcessor
from octavo.errors import EngineDeadError, OctavoError, RequestError
from octavo.log import get_logger

if TYPE_CHECKING:
    from octavo.engine.tokenizer import Tokenizer

logger = get_logger(__name__)

T = TypeVar("T")

SILENCE_SECONDS = 120.0
"""A core that has said nothing for so long is called unhealthy: its longest step is shorter."""

_NUM_THREADS = 2
"""Threads for tokenizing and templates; the tokenizer releases the GIL."""


class AsyncLLM:
    """One engine core in a process of its own, and the requests that it serves.

    Made by `start`. The first cause of the engine's death is kept: every later call raises it.

    Attributes:
        config: resolved.
        info: what the core said of itself.
        metrics: counters and histograms of all requests.
        on_dead: called once, on the loop, when the engine dies.
    """

    def __init__(
        self,
        handle: CoreHandle,
        socket: zmq.asyncio.Socket,
        info: wire.CoreInfo,
        tokenizer: Tokenizer,
        generation_config: Mapping[str, Any],
    ) -> None:
        self.config = info.config
        self.info = info
        self.tokenizer = tokenizer
        self.on_dead: Callable[[], None] | None = None
        self.metrics = EngineMetrics(
            max_model_len=info.memory_plan.max_model_len,
            cache=CacheInfo(
                block_size=BLOCK_SIZE,
                num_blocks=info.memory_plan.num_blocks,
                dtype=info.kv_cache_dtype,
                enable_prefix_caching=info.config.cache.enable_prefix_caching,
            ),
        )
        self._handle = handle
        self._socket = socket
        self._encoder = Encoder()
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="octavo-text")
        self._input_processor = InputProcessor(
            self.config.model,
            tokenizer,
            vocab_size=info.vocab_size,
            generation_config=generation_config,
        )
        self._output_processor = OutputProcessor(tokenizer)
        self._streams: dict[str, _Stream] = {}
        self._calls: dict[int, asyncio.Future[bool]] = {}
        self._num_calls = 0
        self._last_heard = time.monotonic()
        self._dead: EngineDeadError | None = None
        self._abort_reason = "disconnect"  # of a generator that is left; once dead, of its death
        self._aborts: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._receiver: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, config: EngineConfig, handle: CoreHandle | None = None) -> AsyncLLM:
        """Find the model, start the core, wait until it is ready.

        Args:
            handle: a core process that was started ahead of time.

        Raises:
            ConfigError, MemoryPlanError, ModelError: it cannot be done; the message says why.
        """
        handle = handle or CoreHandle()
        socket = zmq.asyncio.Socket.from_socket(handle.socket)
        try:
            return await cls._start(config.checked(), handle, socket)
        except BaseException:
            await _close(handle, socket)
            raise

    @classmethod
    async def _start(
        cls, config: EngineConfig, handle: CoreHandle, socket: zmq.asyncio.Socket
    ) -> AsyncLLM:
        from octavo.engine.tokenizer import tokenizer_of
        from octavo.models.files import resolve_model

        loop = asyncio.get_running_loop()
        model = config.model
        resolve = partial(
            resolve_model, model.model, revision=model.revision, load_format=model.load_format
        )
        with contextlib.closing(await loop.run_in_executor(None, resolve)) as files:
            exited: asyncio.Future[int] = loop.create_future()
            handle.watch(lambda status: _call_soon(loop, _set_result, exited, status))
            await _receive(socket, exited, wire.Hello)
            start = wire.Start(config=config, model_path=str(files.path))
            await socket.send_multipart([handle.identity, Encoder().encode(start)])
            tokenizer = await loop.run_in_executor(None, tokenizer_of, model, files)
            ready = await _receive(socket, exited, wire.Ready)
        engine = cls(handle, socket, ready.info, tokenizer, files.generation_config)
        exited.add_done_callback(engine._core_exited)
        engine._receiver = asyncio.create_task(engine._receive_outputs())
        return engine

    # ---------------------------------------------------------------- requests

    async def generate(
        self,
        prompt: PromptType,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of one request as they come (`SamplingParams.output_kind`). A slow reader
        gets fewer, larger ones. Leaving the generator aborts the request.

        Raises:
            RequestError: the request is wrong, or its id is in use.
            EngineDeadError: the engine died, or is shutting down.
        """
        self._ensure_accepting()
        if params.logits_processors:
            raise RequestError(
                "logits_processors are for LLM, which runs in the caller's process; start the "
                "engine with logits processor classes instead",
                param="logits_processors",
            )
        process = partial(self._input_processor.process, priority=priority, cache_salt=cache_salt)
        request = await self._in_thread(process, request_id, prompt, params)
        self._ensure_accepting()
        if request_id in self._streams:  # it may have ended, and its last output not been read
            raise RequestError(
                f"request_id={request_id!r} is in use; wait for its end or choose another",
                param="request_id",
            )
        self._output_processor.add_request(request)
        stream = self._streams[request_id] = _Stream(request.params.output_kind)
        self._idle.clear()
        self.metrics.add_requests(request.engine_requests)
        try:
            for engine_request in request.engine_requests:
                await self._send(self._add_message(engine_request))
            while True:
                output = await stream.get()
                yield output
                if output.finished:
                    return
        finally:
            self._end(request_id)

    async def abort(self, request_id: str) -> None:
        """End a request: its generator gives a last output with finish_reason "abort"."""
        aborted = self._output_processor.abort_requests([request_id])
        for output in aborted.request_outputs:
            self._deliver(output)
        await self._abort_in_core(list(aborted.to_abort), "api")

    async def check_num_chars(self, num_chars: int, param: str) -> None:
        """Refuse a text that cannot fit before it is tokenized. Raises PromptTooLongError."""
        check = partial(self._input_processor.check_num_chars, param=param)
        await self._in_thread(check, num_chars)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Text to ids, off the event loop."""
        encode = partial(self.tokenizer.encode, add_special_tokens=add_special_tokens)
        return await self._in_thread(encode, text)

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], **template_options: Any
    ) -> list[int]:
        """Messages to prompt ids (`Tokenizer.apply_chat_template`), off the event loop."""
        render = partial(self.tokenizer.apply_chat_template, **template_options)
        return await self._in_thread(render, messages)

    def default_sampling_params(self) -> SamplingParams:
        """What a request without parameters gets."""
        return self._input_processor.default_sampling_params()

    # ---------------------------------------------------------------- the engine

    @property
    def num_unfinished(self) -> int:
        """Requests that have not had their last output."""
        return self._output_processor.num_unfinished

    def stats(self) -> SchedulerStats:
        """The scheduler's counters, as last heard."""
        return self.metrics.stats

    async def check_health(self) -> None:
        """Raises EngineDeadError: the core is gone, or has been silent for too long."""
        if self._dead is not None:
            raise EngineDeadError(str(self._dead))
        silent = time.monotonic() - self._last_heard
        if silent > SILENCE_SECONDS:
            raise EngineDeadError(f"the engine core has been silent for {silent:.0f} s")

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False (and nothing done) while requests hold blocks."""
        self._ensure_accepting()
        self._num_calls += 1
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._calls[self._num_calls] = answer
        await self._send(wire.Call(call_id=self._num_calls, method="reset_prefix_cache"))
        return await answer

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        """Take no more requests, let the running ones end for so long, then stop the core. May be
        called twice."""
        self._stopping = True
        if self._dead is None and self.num_unfinished:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._idle.wait(), drain_seconds)
        self._die(EngineDeadError("the engine was shut down"), "shutdown")
        if self._receiver is not None:
            self._receiver.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._receiver
        with contextlib.suppress(zmq.ZMQError):
            await self._send(wire.Shutdown())
        await _close(self._handle, self._socket)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ---------------------------------------------------------------- towards the core

    def _add_message(self, request: EngineRequest) -> wire.Add:
        body = msgspec.Raw(self._encoder.encode(request))
        return wire.Add(request_id=request.request_id, request=body)

    async def _send(self, message: wire.ToCore) -> None:
        await self._socket.send_multipart([self._handle.identity, self._encoder.encode(message)])

    async def _abort_in_core(self, engine_ids: list[str], reason: str) -> None:
        for engine_id in engine_ids:
            self.metrics.finish_request(engine_id, FinishReason.ABORT, abort_reason=reason)
        if engine_ids and self._dead is None:
            await self._send(wire.Abort(request_ids=engine_ids))

    def _end(self, request_id: str) -> None:
        """A generator was left: abort what still runs."""
        self._streams.pop(request_id, None)
        aborted = self._output_processor.abort_requests([request_id])
        if aborted.to_abort:
            # The generator may be closing: nothing may be awaited here.
            abort = self._abort_in_core(list(aborted.to_abort), self._abort_reason)
            task = asyncio.ensure_future(abort)
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)
            task.add_done_callback(_log_failure)
        if not self._streams:
            self._idle.set()

    # ---------------------------------------------------------------- from the core

    async def _receive_outputs(self) -> None:
        """Take messages until the core dies. An error in here is the engine's death."""
        try:
            while self._dead is None:
                _, frame = await self._socket.recv_multipart()
                self._last_heard = time.monotonic()
                message = wire.from_core_decoder.decode(frame)
                if isinstance(message, wire.Outputs):
                    await self._take_outputs(message.outputs)
                elif isinstance(message, wire.Result):
                    self._take_result(message)
                elif isinstance(message, wire.Dead):
                    self._die(EngineDeadError(message.message), "engine_dead")
        except Exception as error:
            logger.exception("the front end failed")
            self._die(EngineDeadError(f"the front end failed: {error}"), "engine_dead")

    async def _take_outputs(self, outputs: EngineOutputs) -> None:
        self.metrics.record_outputs(outputs)
        processed = self._output_processor.process_outputs(outputs.outputs)
        for output in processed.request_outputs:
            self._deliver(output)
        if processed.to_abort:
            for engine_id, reason in processed.to_abort.items():
                self.metrics.finish_request(engine_id, reason)
            await self._send(wire.Abort(request_ids=list(processed.to_abort)))
        await asyncio.sleep(0)  # the readers' turn: messages may be waiting without end

    def _deliver(self, output: RequestOutput) -> None:
        stream = self._streams.get(output.request_id)
        if stream is not None:
            stream.put(output)

    def _take_result(self, result: wire.Result) -> None:
        answer = self._calls.pop(result.call_id, None)
        if answer is None or answer.done():
            return
        if result.error is not None:
            answer.set_exception(OctavoError(result.error))
        else:
            answer.set_result(bool(result.value))

    def _core_exited(self, exited: asyncio.Future[int]) -> None:
        status = exited.result()
        self._die(EngineDeadError(f"the engine core ended with status {status}"), "engine_dead")

    def _die(self, error: EngineDeadError, reason: str) -> None:
        """Keep the first cause, and tell everyone who waits. Requests count as aborted for `reason`
        (`metrics.ABORT_REASONS`)."""
        if self._dead is not None:
            return
        self._dead = error
        self._abort_reason = reason
        if not self._stopping:
            logger.error("the engine is dead: %s", error)
        for stream in list(self._streams.values()):
            stream.fail(EngineDeadError(str(error)))
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(EngineDeadError(str(error)))
        self._calls.clear()
        if self.on_dead is not None and not self._stopping:
            self.on_dead()

    # ---------------------------------------------------------------- helpers

    def _ensure_accepting(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(str(self._dead))
        if self._stopping:
            raise EngineDeadError("the engine is shutting down")

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


class _Stream:
    """Outputs of one request on their way to its reader. Never more than one is kept for a slow
    reader: a newer one replaces it, or, for deltas, is joined to it."""

    def __init__(self, kind: RequestOutputKind) -> None:
        self._delta = kind is RequestOutputKind.DELTA
        self._output: RequestOutput | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> None:
        """Give the reader an output."""
        if self._output is not None and self._delta:
            output = _joined(self._output, output)
        self._output = output
        self._wake()

    def fail(self, error: Exception) -> None:
        """Nothing more will come."""
        self._error = error
        self._wake()

    async def get(self) -> RequestOutput:
        """The next output. Raises what `fail` was given, once all outputs were taken."""
        while self._output is None:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        output, self._output = self._output, None
        return output

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _joined(old: RequestOutput, new: RequestOutput) -> RequestOutput:
    """Two deltas as one: `new`, with the news of `old` before it."""
    outputs = {c.index: c for c in old.outputs}
    for completion in new.outputs:
        before = outputs.get(completion.index)
        if before is not None:
            completion.text = before.text + completion.text
            completion.token_ids = before.token_ids + completion.token_ids
            if before.logprobs is not None:
                completion.logprobs = before.logprobs + (completion.logprobs or [])
        outputs[completion.index] = completion
    new.outputs = [outputs[i] for i in sorted(outputs)]
    if new.prompt_logprobs is None:
        new.prompt_logprobs = old.prompt_logprobs
    return new


Message = TypeVar("Message", wire.Hello, wire.Ready)


async def _receive(
    socket: zmq.asyncio.Socket, exited: asyncio.Future[int], kind: type[Message]
) -> Message:
    """The core's next message, which must be of `kind`. Raises what it failed with."""
    receive: asyncio.Future[Any] = asyncio.ensure_future(socket.recv_multipart())
    waiting: list[asyncio.Future[Any]] = [receive, exited]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if not receive.done():
        try:
            await asyncio.wait_for(receive, 0.5)  # its last words may still be under way
        except asyncio.TimeoutError:
            raise EngineDeadError(
                f"the engine core ended with status {exited.result()} before it was ready"
            ) from None
    _, frame = receive.result()
    message = wire.from_core_decoder.decode(frame)
    if isinstance(message, wire.Failed):
        raise getattr(errors, message.error, OctavoError)(message.message)
    if not isinstance(message, kind):
        raise EngineDeadError(f"the engine core said {type(message).__name__} out of turn")
    return message


async def _close(handle: CoreHandle, socket: zmq.asyncio.Socket) -> None:
    with contextlib.suppress(zmq.ZMQError):  # closed already
        # The loop would go on watching the descriptor's number, whoever has it next.
        asyncio.get_running_loop().remove_reader(socket.FD)
    await asyncio.to_thread(handle.close)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *args: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop may be closed already
        loop.call_soon_threadsafe(function, *args)


def _set_result(future: asyncio.Future[int], value: int) -> None:
    if not future.done():
        future.set_result(value)


def _log_failure(task: asyncio.Future[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.warning("an abort did not reach the core: %s", task.exception())
