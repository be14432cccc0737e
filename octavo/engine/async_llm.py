"""AsyncLLM: the engine as a server drives it. An async generator per request, the core in its own
process; everything here runs on one event loop, tokenizing and templates in threads beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from octavo.config.engine import EngineConfig
from octavo.contracts.beam_search_params import BeamSearchParams
from octavo.contracts.kv_spec import BLOCK_SIZE
from octavo.contracts.messages import (
    EngineOutputs,
    FinishReason,
    PoolingRequestOutput,
    RequestOutput,
    SchedulerStats,
    ServiceClass,
)
from octavo.contracts.pause_mode import PauseMode
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.sampling_params import SamplingParams
from octavo.engine.beam_search import (
    CheckedBeamSearch,
    begin_beam_search,
    check_requests,
    run_search,
)
from octavo.engine.core_client import AsyncCoreClient
from octavo.engine.core_launch import CoreHandle, CoreLink
from octavo.engine.daemon_thread import in_daemon_thread
from octavo.engine.input_processor import (
    CheckedRequest,
    InputProcessor,
    ProcessedRequest,
    PromptType,
)
from octavo.engine.metrics import CacheInfo, EngineMetrics
from octavo.engine.output_processor import OutputProcessor, ParserOf
from octavo.engine.output_stream import OutputStream
from octavo.engine.pooling import pooling_output
from octavo.engine.socket_client import SocketClient
from octavo.errors import DuplicateIdError, EngineDeadError, RequestError
from octavo.log import get_logger

if TYPE_CHECKING:
    from octavo.config.sections import ModelConfig
    from octavo.contracts.engine_view import EngineView
    from octavo.engine.tokenizer import Tokenizer
    from octavo.models.files import ModelFiles

logger = get_logger(__name__)

T = TypeVar("T")

_DRAIN_POLL_SECONDS = 0.02

_NUM_THREADS = 2
"""Threads for tokenizing and templates; the tokenizer releases the GIL."""


class AsyncLLM:
    """Requests as async generators, over a client of engine cores in other processes.

    Made by `start`. The first cause of the engine's death is kept: every later call raises it.

    Args:
        client: ready.
        tokenizer: the model's.
        generation_config: the model's, {} where there is none.

    Attributes:
        config: resolved.
        info: what the core said of itself.
        metrics: counters and histograms of all requests.
    """

    def __init__(
        self, client: AsyncCoreClient, tokenizer: Tokenizer, generation_config: Mapping[str, Any]
    ) -> None:
        info = client.info
        self.config = info.config
        self.info = info
        self.tokenizer = tokenizer
        self.metrics = EngineMetrics(
            max_model_len=info.memory_plan.max_model_len,
            cache=CacheInfo(
                block_size=BLOCK_SIZE,
                num_blocks=info.memory_plan.num_blocks,
                dtype=info.kv_cache_dtype,
                enable_prefix_caching=info.config.cache.enable_prefix_caching,
            ),
        )
        self._client = client
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="octavo-text")
        self._input_processor = InputProcessor(
            self.config.model,
            tokenizer,
            vocab_size=info.vocab_size,
            hidden_size=info.hidden_size,
            generation_config=generation_config,
        )
        self._output_processor = OutputProcessor(tokenizer)
        self._streams: dict[str, OutputStream] = {}
        self._dead: EngineDeadError | None = None
        self._abort_reason = "disconnect"  # of a generator that is left; once dead, of its death
        self._aborts: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._receiver = asyncio.create_task(self._receive_outputs())

    @classmethod
    async def start(cls, config: EngineConfig, handle: CoreHandle | None = None) -> AsyncLLM:
        """Find the model, start the core, wait until it is ready.

        Args:
            handle: a core process that was started ahead of time.

        Raises:
            ConfigError, MemoryPlanError, ModelError: it cannot be done; the message says why.
        """
        client = SocketClient(handle or CoreHandle())
        try:
            return await cls._start(config.checked(), client)
        except BaseException:
            await client.shutdown()
            raise

    @classmethod
    async def _start(cls, config: EngineConfig, client: SocketClient) -> AsyncLLM:
        from octavo.engine.tokenizer import tokenizer_of

        loop = asyncio.get_running_loop()
        files_of = partial(_files_of, config.model)
        with contextlib.closing(await in_daemon_thread(files_of)) as files:
            await client.launch(config, str(files.path))
            tokenizer = await loop.run_in_executor(None, tokenizer_of, config.model, files)
            await client.ready()
        return cls(client, tokenizer, files.generation_config)

    @classmethod
    async def attach(cls, link: CoreLink) -> AsyncLLM:
        """A further front end of a core that another one started. Raises as `start`."""
        from octavo.engine.tokenizer import tokenizer_of

        client = SocketClient(link)
        try:
            await client.attach()
            model = client.info.config.model
            with contextlib.closing(_files_of(model)) as files:
                return cls(client, tokenizer_of(model, files), files.generation_config)
        except BaseException:
            await client.shutdown()
            raise

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
        """`check` one request, and `run` it. Raises as these two."""
        (request,) = await self.check([prompt], [params], priority=priority, cache_salt=cache_salt)
        assert isinstance(request, CheckedRequest)
        async with contextlib.aclosing(self.run(request, request_id)) as outputs:
            async for output in outputs:
                yield output

    async def encode(
        self,
        prompt: PromptType,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """The vector of one prompt: a single output. Raises as `generate`, and RequestFailedError:
        the request failed, or was aborted."""
        (request,) = await self.check(
            [prompt], [pooling_params], priority=priority, cache_salt=cache_salt
        )
        assert isinstance(request, CheckedRequest)
        async with contextlib.aclosing(self.run(request, request_id)) as outputs:
            async for output in outputs:
                yield pooling_output(output)

    async def check(
        self,
        prompts: Sequence[PromptType],
        params: Sequence[SamplingParams | BeamSearchParams | PoolingParams],
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> list[CheckedRequest | CheckedBeamSearch]:
        """Make requests fit to `run` or, of a beam search, to `search`; begin nothing. As
        `InputProcessor.check`, and EngineDeadError: the engine died, or is shutting down."""
        self._ensure_accepting()
        if isinstance(params[0], SamplingParams) and params[0].logits_processors:
            raise RequestError(
                "logits_processors are for LLM, which runs in the caller's process; start the "
                "engine with logits processor classes instead",
                param="logits_processors",
            )
        check = partial(
            check_requests, self._input_processor, priority=priority, cache_salt=cache_salt
        )
        requests = await self._in_thread(check, prompts, params)
        first = requests[0]
        if isinstance(first, CheckedRequest) and first.first_token_ids is not None:
            await self.check_grammar(first)
        return requests

    async def check_grammar(self, request: CheckedRequest) -> None:
        """Raise RequestError if the request's grammar, where it has one, cannot be used, or begins
        with none of the tokens that its parameters allow. It is compiled in the core."""
        if request.derived.grammar is not None:
            await self._client.check_grammar(request.derived.grammar, request.first_token_ids)

    async def run(
        self,
        request: CheckedRequest,
        request_id: str,
        *,
        service_class: ServiceClass = ServiceClass.INTERACTIVE,
        parser_of: ParserOf | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of one request as they come (`SamplingParams.output_kind`). A slow reader
        gets fewer, larger ones. Leaving the generator aborts the request.

        With `parser_of`, answers are taken apart (`CompletionOutput.events`), and stop strings are
        searched in content alone.

        Raises RequestError: its id is wrong, or in use; EngineDeadError, as `check`."""
        self._ensure_accepting()
        processed = self._input_processor.begin(request_id, request, service_class=service_class)
        stream = self._open(processed, parser_of)
        try:
            await self._submit(processed)
            while True:
                output = await stream.get()
                yield output
                if output.finished:
                    return
        finally:
            self._end(request_id)

    async def search(
        self,
        request: CheckedBeamSearch,
        request_id: str,
        *,
        service_class: ServiceClass = ServiceClass.INTERACTIVE,
        skip_special_tokens: bool = True,
    ) -> RequestOutput:
        """The sequences that a beam search found, the best first, as the completions of one output.
        Cancelling it aborts what runs. Raises as `run`."""
        self._ensure_accepting()
        search = begin_beam_search(
            self._input_processor, request_id, request, service_class=service_class
        )
        await run_search(search, self._last_of)
        finish = partial(search.request_output, skip_special_tokens=skip_special_tokens)
        return await self._in_thread(finish, self.tokenizer)

    async def abort(self, request_id: str) -> None:
        """End a request: its generator gives a last output with finish_reason "abort"."""
        aborted = self._output_processor.abort_requests([request_id])
        for output in aborted.request_outputs:
            self._deliver(output)
        self._count_aborts(aborted.to_abort, "api")
        await self._client.abort_requests(list(aborted.to_abort))

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
        """Messages to prompt ids (`Tokenizer.render_chat`), off the event loop."""
        render = partial(self.tokenizer.render_chat, **template_options)
        return (await self._in_thread(render, messages)).token_ids

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
        """Raises EngineDeadError, or EngineUnresponsiveError: the core's process has shown no sign
        of life for seconds, and may come back."""
        self._ensure_alive()
        self._client.check_health()

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False (and nothing done) while requests hold blocks."""
        self._ensure_accepting()
        return await self._client.reset_prefix_cache()

    @property
    def unfinished_request_ids(self) -> list[str]:
        """Ids of the requests that run or wait, in order of arrival."""
        return self._output_processor.unfinished_ids

    async def pause_generation(
        self, *, mode: PauseMode = "abort", clear_cache: bool = True
    ) -> None:
        """Admit no requests until `resume_generation`; they wait.

        Args:
            mode: what becomes of requests that have begun (`PauseMode`). With "wait" this returns
                when the last of them has ended.
            clear_cache: forget all cached prefixes then; not with "keep".
        """
        self._ensure_accepting()
        await self._client.pause(mode)
        while mode == "wait" and await self._client.has_begun_requests():
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        if clear_cache and mode != "keep":
            await self._client.reset_prefix_cache()

    async def resume_generation(self) -> None:
        """Go on after a pause."""
        self._ensure_accepting()
        await self._client.resume()

    async def is_paused(self) -> bool:
        """Whether it was paused, and not resumed since."""
        self._ensure_accepting()
        return await self._client.is_paused()

    async def observe(self, after_step: int = -1, block_id: int | None = None) -> EngineView:
        """What the core is doing (`Scheduler.observe`), when the step in progress has ended."""
        self._ensure_alive()
        return await self._client.observe(after_step, block_id)

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        """Take no more requests, let the running ones end for so long, then stop the core. May be
        called twice."""
        self._stopping = True
        if self._dead is None and self.num_unfinished:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._idle.wait(), drain_seconds)
        self._die(EngineDeadError("the engine was shut down"), "shutdown")
        self._receiver.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._receiver
        await self._client.shutdown()
        self._threads.shutdown(wait=False)

    # ---------------------------------------------------------------- ends

    def _open(self, request: ProcessedRequest, parser_of: ParserOf | None = None) -> OutputStream:
        """Expect a request's outputs, until `_end`. Raises DuplicateIdError, EngineDeadError."""
        self._ensure_accepting()
        request_id = request.request_id
        if request_id in self._streams:  # it may have ended, and its last output not been read
            raise DuplicateIdError(
                f"request_id={request_id!r} is in use; wait for its end or choose another",
                param="request_id",
            )
        self._output_processor.add_request(request, parser_of)
        stream = self._streams[request_id] = OutputStream(request.params.output_kind)
        self._idle.clear()
        self.metrics.add_requests(request.engine_requests)
        return stream

    async def _submit(self, request: ProcessedRequest) -> None:
        for engine_request in request.engine_requests:
            await self._client.add_request(engine_request)

    async def _last_of(self, request: ProcessedRequest) -> RequestOutput:
        """Run a request to its end."""
        stream = self._open(request)
        try:
            await self._submit(request)
            while not (output := await stream.get()).finished:
                pass
            return output
        finally:
            self._end(request.request_id)

    def _count_aborts(self, engine_ids: Iterable[str], reason: str) -> None:
        for engine_id in engine_ids:
            self.metrics.finish_request(engine_id, FinishReason.ABORT, abort_reason=reason)

    def _end(self, request_id: str) -> None:
        """A generator was left: abort what still runs."""
        self._streams.pop(request_id, None)
        aborted = self._output_processor.abort_requests([request_id])
        if aborted.to_abort:
            self._count_aborts(aborted.to_abort, self._abort_reason)
            # The generator may be closing: nothing may be awaited here.
            task = asyncio.ensure_future(self._client.abort_requests(list(aborted.to_abort)))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)
            task.add_done_callback(_log_failure)
        if not self._streams:
            self._idle.set()

    # ---------------------------------------------------------------- from the core

    async def _receive_outputs(self) -> None:
        """Take outputs until the core dies. An error in here is the engine's death."""
        try:
            while True:
                await self._take_outputs(await self._client.get_outputs())
        except EngineDeadError as error:
            self._die(error, "engine_dead")
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
            await self._client.abort_requests(list(processed.to_abort))
        await asyncio.sleep(0)  # the readers' turn: messages may be waiting without end

    def _deliver(self, output: RequestOutput) -> None:
        stream = self._streams.get(output.request_id)
        if stream is not None:
            stream.put(output)

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

    # ---------------------------------------------------------------- helpers

    def _ensure_accepting(self) -> None:
        self._ensure_alive()
        if self._stopping:
            raise EngineDeadError("the engine is shutting down")

    def _ensure_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(str(self._dead))

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Call it off the event loop. Raises EngineDeadError, also while it waits for its turn."""

        def call() -> T:
            self._ensure_alive()
            return function(*args)

        self._ensure_alive()
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _files_of(model: ModelConfig) -> ModelFiles:
    from octavo.models.files import resolve_model

    return resolve_model(model.model, revision=model.revision, load_format=model.load_format)


def _log_failure(task: asyncio.Future[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.warning("an abort did not reach the core: %s", task.exception())
