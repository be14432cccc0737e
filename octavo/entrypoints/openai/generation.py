"""One HTTP request's generation: its prompts' engine requests, run together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.contracts.answer_events import Content, Event
from octavo.contracts.messages import engine_request_ids
from octavo.entrypoints.openai.answers import Progress, PromptTokensDetails, Usage
from octavo.entrypoints.openai.beams import beam_search_params
from octavo.entrypoints.openai.errors import APIError, aborted, bad_request, unavailable
from octavo.entrypoints.openai.gate import REQUEST_ID_RULE, is_request_id
from octavo.entrypoints.openai.request_log import log_request
from octavo.entrypoints.openai.sampling import sampling_params
from octavo.entrypoints.openai.state import MAX_CHOICES
from octavo.entrypoints.openai.truncation import kept_tokens

if TYPE_CHECKING:
    from octavo.contracts.beam_search_params import BeamSearchParams
    from octavo.contracts.messages import CompletionOutput, RequestOutput, ServiceClass
    from octavo.contracts.sampling_params import SamplingParams
    from octavo.engine.output_processor import ParserOf
    from octavo.entrypoints.openai.admission import Ticket
    from octavo.entrypoints.openai.chat_output import AnswerParsing
    from octavo.entrypoints.openai.endpoint import Call
    from octavo.entrypoints.openai.protocol import GenerationRequest
    from octavo.entrypoints.openai.state import ServedModel, Server

_PENDING_OUTPUTS = 16


@dataclass
class Generation:
    """Everything that is needed to generate for one HTTP request.

    Attributes:
        prompts: token ids, one list per prompt.
        params: for all prompts; where `max_tokens` is None it is `default_max_tokens`, or what
            fits the model if that is less (or if there is no default).
        public_id: the `id` of the response.
        beams: where a beam search is asked for; of `params` only n and max_tokens count then.
        parsing: how the answers are taken apart; None: they are not.
    """

    prompts: list[list[int]]
    server: Server
    model: ServedModel
    ticket: Ticket
    params: SamplingParams
    public_id: str
    default_max_tokens: int | None
    priority: int
    service_class: ServiceClass
    cache_salt: str | None
    beams: BeamSearchParams | None = None
    parsing: AnswerParsing | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        num_choices = len(self.prompts) * self.params.num_sequences
        if num_choices > MAX_CHOICES:
            name = "n" if self.params.best_of is None else "best_of"
            raise bad_request(
                f"{len(self.prompts)} prompts with {name}={self.params.num_sequences} are "
                f"{num_choices} completions; at most {MAX_CHOICES} in one request",
                name,
            )
        self._ids = [self.server.internal_id(self.public_id) for _ in self.prompts]
        for i, prompt in enumerate(self.prompts):  # before the key's tokens are taken
            self.model.engine.check_length(self._params(i), len(prompt))
        log_request(self.server.config, self.ticket.record, self.model, self.prompts)
        self.ticket.admit(
            {
                engine_id: 0 if i else len(prompt)  # n completions share the prompt
                for request_id, prompt in zip(self._ids, self.prompts)
                for i, engine_id in enumerate(
                    engine_request_ids(request_id, self.params.num_sequences)
                )
            }
        )

    def events(self, completion: CompletionOutput) -> Iterable[Event]:
        """What an output says, taken apart, as far as the request wants to hear of it."""
        if self.parsing is None or completion.events is None:
            return [Content(completion.text)] if completion.text else []
        return self.parsing.wanted(completion.events)

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
            check_finish(completion)
        return last

    def _generate(self, i: int) -> AsyncGenerator[RequestOutput, None]:
        if self.beams is not None:
            return self._search(i, self.beams)
        return self.model.engine.generate(
            {"prompt_token_ids": self.prompts[i]},
            self._params(i),
            self._ids[i],
            priority=self.priority,
            service_class=self.service_class,
            cache_salt=self.cache_salt,
            parser_of=self._parser_of(i),
        )

    def _parser_of(self, i: int) -> ParserOf | None:
        if self.parsing is None:
            return None
        return self.parsing.parser_for(self.prompts[i], self.model.engine.tokenizer)

    async def _search(self, i: int, beams: BeamSearchParams) -> AsyncGenerator[RequestOutput, None]:
        # Its beams have ids of their own: the ticket counts them as waiting until the end.
        search = self.model.engine.beam_search(
            {"prompt_token_ids": self.prompts[i]},
            msgspec.structs.replace(beams, max_tokens=self._params(i).max_tokens),
            self._ids[i],
            priority=self.priority,
            service_class=self.service_class,
            cache_salt=self.cache_salt,
            # Beams show all special tokens or none.
            skip_special_tokens=self.params.skip_special_tokens
            and not self.params.shown_special_token_ids,
        )
        seconds = self.server.config.request_timeout
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

    def _params(self, i: int) -> SamplingParams:
        if self.params.max_tokens is not None or self.default_max_tokens is None:
            return self.params
        room = self.model.max_model_len - len(self.prompts[i])
        most = min(max(self.default_max_tokens, self.params.min_tokens), room)
        return self.params if most < 1 else msgspec.structs.replace(self.params, max_tokens=most)


def begin(
    call: Call,
    request: GenerationRequest,
    model: ServedModel,
    id_prefix: str,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    default_max_tokens: int | None = None,
    prompt_logprobs: int | None = None,
    parsing: AnswerParsing | None = None,
) -> Callable[[list[list[int]]], Generation]:
    """Check all of a request but its prompts; the result takes these and makes the generation.

    Raises:
        APIError, RequestError: what is wrong with it.
    """
    call.record.model = model.name
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options needs stream=true", "stream_options")
    if request.resumable and not request.stream:
        raise bad_request("resumable needs stream=true", "resumable")
    if request.stream and request.prompt_logprobs is not None:
        raise bad_request("prompt_logprobs are not streamed; use stream=false", "prompt_logprobs")
    if request.prompt_logprobs is not None:
        limit = call.server.config.max_logprobs
        check_num_logprobs("prompt_logprobs", request.prompt_logprobs, limit)
    priority = priority_of(call, request.priority, model)
    beams = beam_search_params(request, max_tokens=max_tokens)
    if beams is not None and prompt_logprobs is not None:
        raise bad_request("echo with logprobs does not go with use_beam_search", "echo")
    params = sampling_params(
        request,
        model.defaults,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        shown_special_token_ids=() if parsing is None else parsing.shown_special_token_ids,
    )
    params = _within(call.server.config.request_timeout, params)
    call.record.params = params
    num_new = max_tokens or default_max_tokens or 1
    kept = kept_tokens(request, room=model.max_model_len - num_new)
    generation = partial(
        Generation,
        server=call.server,
        model=model,
        ticket=call.ticket,
        params=params,
        public_id=public_id_of(call, request.request_id, id_prefix),
        default_max_tokens=default_max_tokens,
        priority=priority,
        service_class=call.service_class,
        cache_salt=request.cache_salt,
        beams=beams,
        parsing=parsing,
    )
    return lambda prompts: generation([prompt[kept] for prompt in prompts])


def public_id_of(call: Call, asked: str | None, prefix: str) -> str:
    """The `id` of the answer: what the request asks for, or the HTTP request's. Raises APIError."""
    base = call.request_id if asked is None else asked
    if not is_request_id(base):
        raise bad_request(f"request_id must be {REQUEST_ID_RULE}", "request_id")
    return prefix + base


def priority_of(call: Call, asked: int | None, model: ServedModel) -> int:
    """What a request asks for, but no better than its key allows. Raises APIError."""
    policy = model.engine.config.scheduler.scheduling_policy
    if asked and policy != "priority":
        raise bad_request(
            f"priority={asked} has no effect under the scheduling policy {policy!r}; start "
            "the server with --scheduling-policy priority",
            "priority",
        )
    key = call.record.key
    best = None if key is None else key.account.limits.priority
    if best is None or policy != "priority":
        return asked or 0
    return best if asked is None else max(asked, best)


def _within(seconds: float, params: SamplingParams) -> SamplingParams:
    """The parameters of a request that ends after so many seconds; 0: when it likes."""
    if not seconds:
        return params
    limit = max(1, round(seconds * 1000))
    most = limit if params.max_time_ms is None else min(limit, params.max_time_ms)
    return msgspec.structs.replace(params, max_time_ms=most)


def check_num_logprobs(name: str, value: int, limit: int) -> None:
    """Raise APIError for more alternatives than the server gives (-1 as limit: any number)."""
    if limit >= 0 and not 0 <= value <= limit:
        raise bad_request(f"{name}={value} must be in 0…{limit}", name)


def stream_options(request: GenerationRequest) -> tuple[bool, bool]:
    """(usage at the end, usage in every chunk)."""
    options = request.stream_options
    if options is None or not options.include_usage:
        return False, False
    return True, bool(options.continuous_usage_stats)


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


def check_finish(completion: CompletionOutput) -> None:
    """Raise APIError for a completion that did not end by itself."""
    if completion.finish_reason == "error" and completion.error_param is not None:
        raise bad_request(completion.error or "the request is wrong", completion.error_param)
    if completion.finish_reason == "error":
        raise APIError(500, completion.error or "the request failed", code="request_failed")
    if completion.finish_reason == "abort":
        raise aborted()


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
