"""POST /inference/v1/generate: token ids in, token ids out; text is made only to find its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from octavo.entrypoints.openai.answers import ChatLogprobs, Progress, PromptLogprobs, Usage
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.beams import BEAM_SEARCH_FIELDS
from octavo.entrypoints.openai.errors import APIError, bad_request, json_response
from octavo.entrypoints.openai.generation import (
    Generation,
    UsageCounter,
    begin,
    progress_of,
    usage_of,
)
from octavo.entrypoints.openai.logprobs import chat_logprobs, prompt_logprobs
from octavo.entrypoints.openai.parsing import parse_body, parse_values
from octavo.entrypoints.openai.prepared import check_num_logprobs, prepare
from octavo.entrypoints.openai.protocol import GenerationRequest, StreamOptions
from octavo.entrypoints.openai.sampling import SAMPLING_FIELDS
from octavo.entrypoints.openai.sse import EventStream, event
from octavo.errors import shown

if TYPE_CHECKING:
    from starlette.responses import Response

    from octavo.contracts.messages import CompletionOutput, RequestOutput
    from octavo.entrypoints.openai.endpoint import Call

DEFAULT_MAX_TOKENS = 16
UNSUPPORTED: dict[str, tuple[Any, ...]] = {"features": (), "kv_transfer_params": ()}


class GenerateRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """POST /inference/v1/generate.

    Attributes:
        token_ids: the prompt.
        sampling_params: the sampling fields of a request for text, those of a beam search too, and
            `logprobs`: how many alternatives per token.
        model, stream, stream_options, cache_salt, priority, request_id: as in a request for text.
    """

    token_ids: list[int]
    sampling_params: dict[str, Any] | None = None
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: int | None = None
    request_id: str | None = None


class SamplingFields(GenerationRequest, kw_only=True):
    """What `sampling_params` may hold, and the request's own fields."""

    logprobs: int | None = None
    best_of: int | None = None


class GenerateChoice(msgspec.Struct, kw_only=True):
    """One of n, or what is new of it. `finish_reason` may be "abort": by /abort_requests."""

    index: int
    token_ids: list[int]
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class GenerateAnswer(msgspec.Struct, kw_only=True):
    """Answer to POST /inference/v1/generate, and an event of its stream."""

    request_id: str
    model: str
    choices: list[GenerateChoice]
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    progress: Progress | UnsetType = UNSET
    usage: Usage | UnsetType | None = UNSET


async def generate(call: Call) -> Response | EventStream:
    """Answer one request: JSON, or a stream of events."""
    request = parse_body(call.take_body(), GenerateRequest, UNSUPPORTED)
    model = call.server.model(request.model)
    call.record.model = model.name
    fields = _fields(request)
    if fields.max_tokens is not None and fields.max_tokens < 1:
        raise bad_request(f"max_tokens={fields.max_tokens} must be at least 1", "max_tokens")
    if fields.logprobs is not None:
        check_num_logprobs("logprobs", fields.logprobs, call.server.config.max_logprobs)

    async def token_ids() -> list[list[int]]:
        return [request.token_ids]

    prepared = await prepare(
        call,
        fields,
        model,
        token_ids,
        max_tokens=fields.max_tokens,
        logprobs=fields.logprobs,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        prompt_field="token_ids",
        detokenize=bool(fields.stop or fields.stop_regex),
    )
    answer = _Answer(fields, begin(call, prepared, "gen-"))
    return EventStream(answer.events()) if request.stream else await answer.whole()


def _fields(request: GenerateRequest) -> SamplingFields:
    """The request as the other routes have it. Raises APIError."""
    values = {k: v for k, v in (request.sampling_params or {}).items() if v is not None}
    for name in values:
        if name not in SAMPLING_FIELDS | BEAM_SEARCH_FIELDS:
            raise bad_request(f"unknown field sampling_params.{shown(name)}", "sampling_params")
    fields: SamplingFields = parse_values(values, SamplingFields, {})
    return msgspec.structs.replace(
        fields,
        stream=request.stream,
        stream_options=request.stream_options,
        cache_salt=request.cache_salt,
        priority=request.priority,
        request_id=request.request_id,
    )


class _Answer:
    """Responses of one request."""

    def __init__(self, fields: SamplingFields, generation: Generation) -> None:
        self._fields = fields
        self._generation = generation

    async def whole(self) -> Response:
        """The one response."""
        async with aclosing(self._generation.stream()) as outputs:
            made = [output async for _, output in outputs]
        if not made:
            raise APIError(500, "the engine gave no output", code="internal_error")
        output = made[-1]
        answer = self._answer(output)
        answer.usage = usage_of([output])
        num_top = self._fields.prompt_logprobs
        if output.prompt_logprobs is not None and num_top is not None:
            answer.prompt_logprobs = prompt_logprobs(output.prompt_logprobs, num_top)
        return json_response(answer)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The stream, an output's news in one event."""
        generation = self._generation
        include_usage, continuous = generation.stream_options(self._fields)
        counter = UsageCounter(generation.prompts)
        async with aclosing(generation.stream()) as outputs:
            async for i, output in outputs:
                counter.add(i, output)
                answer = self._answer(output)
                if (progress := progress_of(i, output)) is not None:
                    answer.progress = progress
                if include_usage:
                    answer.usage = counter.usage if continuous else None
                yield event(answer)
        if include_usage:
            last = GenerateAnswer(
                request_id=generation.public_id, model=generation.model.name, choices=[]
            )
            last.usage = counter.usage
            yield event(last)

    def _answer(self, output: RequestOutput) -> GenerateAnswer:
        generation = self._generation
        return GenerateAnswer(
            request_id=generation.public_id,
            model=generation.model.name,
            choices=[self._choice(c) for c in output.outputs],
        )

    def _choice(self, c: CompletionOutput) -> GenerateChoice:
        if c.finish_reason is not None and c.finish_reason != "abort":
            self._generation.check_finish(c)
        num_top, logprobs = self._fields.logprobs, None
        if num_top is not None and c.logprobs is not None:
            table = self._generation.model.tokens
            logprobs = chat_logprobs(c.token_ids, c.logprobs, table, num_top=num_top, as_ids=True)
        return GenerateChoice(
            index=c.index,
            token_ids=c.token_ids,
            logprobs=logprobs,
            finish_reason=c.finish_reason,
            stop_reason=c.stop_reason,
        )


ROUTES = (
    APIRoute(
        method="POST",
        path="/inference/v1/generate",
        summary="Continue token ids",
        handler=generate,
        request=GenerateRequest,
        unsupported=UNSUPPORTED,
        response=GenerateAnswer,
        event=GenerateAnswer,
        queued=True,
    ),
)
