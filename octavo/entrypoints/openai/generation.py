"""One HTTP request's generation: its prompts' engine requests, run together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from octavo.contracts.answer_events import Content, Event
from octavo.contracts.messages import engine_request_ids
from octavo.engine.beam_search import CheckedBeamSearch
from octavo.entrypoints.openai.answers import Progress, PromptTokensDetails, Usage
from octavo.entrypoints.openai.errors import APIError, aborted, bad_request, unavailable
from octavo.entrypoints.openai.protocol import StreamOptions
from octavo.entrypoints.openai.request_log import log_request

if TYPE_CHECKING:
    from octavo.contracts.messages import CompletionOutput, RequestOutput
    from octavo.contracts.sampling_params import SamplingParams
    from octavo.engine.output_processor import ParserOf
    from octavo.entrypoints.openai.endpoint import Call
    from octavo.entrypoints.openai.prepared import PreparedRequest
    from octavo.entrypoints.openai.protocol import GenerationRequest

_PENDING_OUTPUTS = 16


class Generation:
    """The engine requests of one HTTP request. Made by `begin`.

    Attributes:
        model, prompts, params, parsing: as of `PreparedRequest`.
        public_id: the `id` of the response.
        record: of the HTTP request.
    """

    def __init__(
        self, call: Call, prepared: PreparedRequest, public_id: str, engine_ids: list[str]
    ) -> None:
        self.model = prepared.model
        self.prompts = prepared.prompts
        self.params = prepared.params
        self.parsing = prepared.parsing
        self.public_id = public_id
        self.created = int(time.time())
        self.record = call.record
        self._prepared = prepared
        self._ids = engine_ids
        self._service_class = call.service_class
        self._request_timeout = call.server.config.request_timeout
        self._forces_usage = call.server.config.enable_force_include_usage

    def stream_options(self, request: GenerationRequest) -> tuple[bool, bool]:
        """(usage at the end, usage in every chunk)."""
        options = request.stream_options or StreamOptions()
        include_usage = options.include_usage or self._forces_usage
        return include_usage, include_usage and bool(options.continuous_usage_stats)

    def events(self, completion: CompletionOutput) -> Iterable[Event]:
        """What an output says, taken apart, as far as the request wants to hear of it."""
        if self.parsing is None or completion.events is None:
            return [Content(completion.text)] if completion.text else []
        return self.parsing.wanted(completion.events)

    def check_finish(self, completion: CompletionOutput) -> None:
        """Raise APIError for a completion that did not end by itself."""
        if completion.finish_reason == "error" and completion.error_param is not None:
            param = self._prepared.fields.of(completion.error_param)
            raise bad_request(completion.error or "the request is wrong", param)
        if completion.finish_reason == "error":
            raise APIError(500, completion.error or "the request failed", code="request_failed")
        if completion.finish_reason == "abort":
            raise aborted()

    async def prompt_texts(self) -> list[str]:
        """The prompts as the model sees them, special tokens included."""
        decode = partial(self.model.engine.tokenizer.decode, skip_special_tokens=False)
        return [await asyncio.to_thread(decode, prompt) for prompt in self.prompts]

    async def final(self) -> list[RequestOutput]:
        """Run to the end: the last output of each prompt, in order.

        Raises:
            APIError, OctavoError: one of them failed; the others are aborted.
        """
        if len(self.prompts) == 1:
            return [await self._last(0)]
        tasks = [asyncio.ensure_future(self._last(i)) for i in range(len(self.prompts))]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            await cancel(tasks)

    async def stream(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """(prompt index, output) pairs as they come. Leaving it aborts what is not done.

        Raises:
            APIError, OctavoError: one of the prompts failed; the others are aborted.
        """
        if len(self.prompts) == 1:
            async with aclosing(self._generate(0)) as outputs:
                async for output in outputs:
                    yield 0, output
            return
        queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]]
        queue = asyncio.Queue(_PENDING_OUTPUTS)
        running = len(self.prompts)
        tasks = [asyncio.ensure_future(self._feed(i, queue)) for i in range(running)]
        try:
            while running:
                i, item = await queue.get()
                if item is None:
                    running -= 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield i, item
        finally:
            await cancel(tasks)

    async def _feed(
        self, i: int, queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]]
    ) -> None:
        end: Exception | None = None
        try:
            async with aclosing(self._generate(i)) as outputs:
                async for output in outputs:
                    await queue.put((i, output))
        except Exception as error:
            end = error
        await queue.put((i, end))

    async def _last(self, i: int) -> RequestOutput:
        last = None
        async with aclosing(self._generate(i)) as outputs:
            async for output in outputs:
                last = output
        if last is None:
            raise APIError(500, "the engine gave no output", code="internal_error")
        for completion in last.outputs:
            self.check_finish(completion)
        return last

    def _generate(self, i: int) -> AsyncGenerator[RequestOutput, None]:
        request = self._prepared.requests[i]
        if isinstance(request, CheckedBeamSearch):
            return self._search(i, request)
        return self.model.engine.run(
            request,
            self._ids[i],
            service_class=self._service_class,
            parser_of=self._parser_of(i),
        )

    def _parser_of(self, i: int) -> ParserOf | None:
        if self.parsing is None:
            return None
        return self.parsing.parser_for(self.prompts[i], self.model.engine.tokenizer)

    async def _search(
        self, i: int, request: CheckedBeamSearch
    ) -> AsyncGenerator[RequestOutput, None]:
        # Its beams have ids of their own: the ticket counts them as waiting until the end.
        search = self.model.engine.search(
            request,
            self._ids[i],
            service_class=self._service_class,
            skip_special_tokens=skips_special_tokens(self.params),
        )
        seconds = self._request_timeout
        try:
            output = await asyncio.wait_for(search, seconds or None)
        except asyncio.TimeoutError:
            message = f"the beam search took longer than {seconds} s; ask for fewer tokens or beams"
            raise unavailable(message, "request_timeout") from None
        if (parser_of := self._parser_of(i)) is not None:
            for completion in output.outputs:
                parser = parser_of()
                completion.events = parser.feed(completion.text) + parser.finish()
        yield output


def begin(call: Call, prepared: PreparedRequest, id_prefix: str) -> Generation:
    """Admit a request, charge its key for the prompts, and log it.

    Args:
        id_prefix: what the response's `id` has before the request's.

    Raises:
        APIError: 503, too much waits; 429, its key may not use so many tokens now.
    """
    call.record.params = prepared.params
    log_request(call.server.config, call.record, prepared.model, prepared.prompts)
    public_id = id_prefix + prepared.request_id
    ids = [call.server.internal_id(public_id) for _ in prepared.prompts]
    call.ticket.admit(
        {
            engine_id: 0 if i else len(prompt)  # n completions share the prompt
            for request_id, prompt in zip(ids, prepared.prompts)
            for i, engine_id in enumerate(
                engine_request_ids(request_id, prepared.params.num_sequences)
            )
        }
    )
    return Generation(call, prepared, public_id, ids)


def skips_special_tokens(params: SamplingParams) -> bool:
    """Whether the texts of beams have no special tokens: they show all of them or none."""
    return params.skip_special_tokens and not params.shown_special_token_ids


def progress_of(i: int, output: RequestOutput) -> Progress | None:
    """What an output of prompt i tells of its progress, if it does; then it tells nothing else."""
    if output.progress is None:
        return None
    return Progress(
        index=i,
        queue_position=output.progress.num_ahead,
        prompt_tokens=len(output.prompt_token_ids),
        prompt_tokens_processed=output.progress.num_computed_tokens,
    )


def usage_of(
    outputs: Sequence[RequestOutput], *, num_completion_tokens: int | None = None
) -> Usage:
    """Tokens of a request from the last outputs of its prompts."""
    prompt = sum(len(o.prompt_token_ids) for o in outputs)
    made = sum(len(c.token_ids) for o in outputs for c in o.outputs)
    made = made if num_completion_tokens is None else num_completion_tokens
    cached = sum(o.num_cached_tokens for o in outputs)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=made,
        total_tokens=prompt + made,
        prompt_tokens_details=PromptTokensDetails(cached),
    )


class UsageCounter:
    """The running usage of a stream: it only grows."""

    def __init__(self, prompts: Sequence[Sequence[int]], *, count_output: bool = True) -> None:
        prompt_tokens = sum(map(len, prompts))
        self._count_output = count_output
        self.usage = Usage(prompt_tokens=prompt_tokens, total_tokens=prompt_tokens)
        self._cached = [0] * len(prompts)

    def add(self, i: int, output: RequestOutput) -> None:
        """Count an output of prompt i."""
        usage = self.usage
        if self._count_output:
            made = 0
            for completion in output.outputs:
                made += len(completion.token_ids)
            usage.completion_tokens += made
            usage.total_tokens += made
        if output.num_cached_tokens != self._cached[i]:
            self._cached[i] = output.num_cached_tokens
            usage.prompt_tokens_details.cached_tokens = sum(self._cached)


async def cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """End tasks, and wait until they have."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
