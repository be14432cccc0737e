"""POST /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from octavo.entrypoints.openai.answers import Completion, CompletionChoice
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.errors import bad_request, json_response
from octavo.entrypoints.openai.generation import (
    Generation,
    UsageCounter,
    begin,
    progress_of,
    usage_of,
)
from octavo.entrypoints.openai.logprobs import completion_logprobs, prompt_logprobs
from octavo.entrypoints.openai.parsing import parse_body
from octavo.entrypoints.openai.prepared import PreparedRequest, check_num_logprobs, prepare
from octavo.entrypoints.openai.protocol import COMPLETION_UNSUPPORTED, CompletionRequest
from octavo.entrypoints.openai.sse import EventStream, event
from octavo.entrypoints.openai.state import MAX_CHOICES
from octavo.entrypoints.openai.streams import resumable

if TYPE_CHECKING:
    from starlette.responses import Response

    from octavo.contracts.messages import CompletionOutput, RequestOutput
    from octavo.entrypoints.openai.endpoint import Call
    from octavo.entrypoints.openai.tokens import TextOffsets

DEFAULT_MAX_TOKENS = 16


async def create_completion(call: Call) -> Response | EventStream:
    """Answer one request: JSON, or a stream of events."""
    request = parse_body(call.take_body(), CompletionRequest, COMPLETION_UNSUPPORTED)
    if request.resumable and request.stream:
        return resumable(call, lambda own: _begin(own, request))
    completion = await _begin(call, request)
    return EventStream(completion.events()) if request.stream else await completion.answer()


async def _begin(call: Call, request: CompletionRequest) -> TextCompletion:
    call.record.model = call.server.model(request.model).name
    prepared = await prepare_completion(call, request)
    return await completion_of(request, begin(call, prepared, "cmpl-"))


async def completion_of(request: CompletionRequest, generation: Generation) -> TextCompletion:
    """The responses of a request whose generation has begun."""
    completion = TextCompletion(request, generation, await _echoes(request, generation))
    if request.return_prompt_text:
        completion.prompt_texts = await generation.prompt_texts()
    return completion


async def prepare_completion(call: Call, request: CompletionRequest) -> PreparedRequest:
    """Check a request. Raises APIError, RequestError: what is wrong with it."""
    model = call.server.model(request.model)
    prompts = read_prompts(request.prompt)
    max_tokens = request.max_tokens
    if max_tokens == 0 and request.echo:
        max_tokens = 1  # not shown: it takes a step to have the prompt's log probabilities
    if max_tokens is not None and max_tokens < 1:
        raise bad_request(
            f"max_tokens={max_tokens} must be at least 1 (or 0, with echo)", "max_tokens"
        )
    if request.logprobs is not None:
        check_num_logprobs("logprobs", request.logprobs, call.server.config.max_logprobs)
    special = request.add_special_tokens is not False

    async def tokenize() -> list[list[int]]:
        ids = []
        for prompt in prompts:
            if isinstance(prompt, str):
                await model.engine.check_num_chars(len(prompt), "prompt")
                prompt = await model.engine.tokenize(prompt, add_special_tokens=special)
            ids.append(prompt)
        return ids

    return await prepare(
        call,
        request,
        model,
        tokenize,
        max_tokens=max_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        logprobs=request.logprobs,
        prompt_logprobs=request.logprobs if request.echo else None,
    )


def read_prompts(
    prompt: Any, param: str = "prompt", *, most: int = MAX_CHOICES
) -> list[str] | list[list[int]]:
    """A prompt in any of its four forms as a list, of at most so many. Raises APIError.

    Args:
        param: the request's field.
    """
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        kinds = set(map(type, prompt))
        if kinds == {int}:
            return [prompt]
        if kinds == {str}:
            return _few(prompt, param, most)
        if kinds == {list} and all(set(map(type, p)) <= {int} for p in _few(prompt, param, most)):
            return prompt
    raise bad_request(
        f"{param} must be a string, a list of strings, a list of token ids, or a list of lists of "
        "token ids, and not empty",
        param,
    )


def _few(prompts: list[Any], param: str, most: int) -> list[Any]:
    if len(prompts) > most:
        raise bad_request(f"{len(prompts)} prompts; at most {most} in one request", param)
    return prompts


async def _echoes(request: CompletionRequest, generation: Generation) -> list[str]:
    """What each prompt's texts begin with."""
    if not request.echo:
        return [""] * len(generation.prompts)
    prompts: list[str] | list[list[int]] = generation.prompts
    if request.truncate_prompt_tokens is None:
        prompts = read_prompts(request.prompt)
    skip = request.skip_special_tokens is not False
    decode = partial(generation.model.engine.tokenizer.decode, skip_special_tokens=skip)
    return [p if isinstance(p, str) else await asyncio.to_thread(decode, p) for p in prompts]


class TextCompletion:
    """Responses of one request.

    Args:
        echoes: what each prompt's texts begin with.

    Attributes:
        prompt_only: max_tokens is 0: the one token that is made is not shown.
        prompt_texts: the prompts, where the request wants to see them.
    """

    def __init__(
        self, request: CompletionRequest, generation: Generation, echoes: list[str]
    ) -> None:
        self.request = request
        self.generation = generation
        self.echoes = echoes
        self.prompt_only = request.max_tokens == 0
        self.with_ids = bool(request.return_token_ids)
        self.prompt_texts: list[str] | None = None

    async def answer(self) -> Response:
        """The whole answer."""
        outputs = await self.generation.final()
        choices = [
            self._choice(i, c, output, self._offsets(), first=True)
            for i, output in enumerate(outputs)
            for c in output.outputs
        ]
        usage = usage_of(outputs, num_completion_tokens=0 if self.prompt_only else None)
        return json_response(self._body(choices, usage))

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The stream, an output's events together."""
        include_usage, continuous = self.generation.stream_options(self.request)
        counter = UsageCounter(self.generation.prompts, count_output=not self.prompt_only)
        chunk = self._body([], counter.usage if continuous else None if include_usage else UNSET)
        offsets: dict[int, TextOffsets] = {}
        async with aclosing(self.generation.stream()) as outputs:
            async for i, output in outputs:
                if (progress := progress_of(i, output)) is not None:
                    yield event(msgspec.structs.replace(chunk, choices=[], progress=progress))
                    continue
                counter.add(i, output)
                data = b""
                for c in output.outputs:
                    index = self._index(i, c)
                    first = index not in offsets
                    if first:
                        offsets[index] = self._offsets()
                    if first or c.text or c.finish_reason or self._wants_tokens(c):
                        choice = self._choice(i, c, output, offsets[index], first=first)
                        chunk.choices = [choice]
                        data += event(chunk)
                if data:
                    yield data
        if include_usage:
            chunk.choices, chunk.usage = [], counter.usage
            yield event(chunk)

    def _body(self, choices: list[CompletionChoice], usage: Any) -> Completion:
        generation = self.generation
        return Completion(
            id=generation.public_id,
            created=generation.created,
            model=generation.model.name,
            choices=choices,
            usage=usage,
        )

    def _index(self, i: int, c: CompletionOutput) -> int:
        return i * self.generation.params.n + c.index

    def _offsets(self) -> TextOffsets:
        skip = self.generation.params.skip_special_tokens
        return self.generation.model.tokens.offsets(skip_special_tokens=skip)

    def _choice(
        self,
        i: int,
        c: CompletionOutput,
        output: RequestOutput,
        offsets: TextOffsets,
        *,
        first: bool,
    ) -> CompletionChoice:
        """One choice, or what is new of it; the first time the echoed prompt is part of it."""
        token_ids = [] if self.prompt_only else c.token_ids
        choice = CompletionChoice(index=self._index(i, c), text="" if self.prompt_only else c.text)
        positions: list[Any] = [] if self.prompt_only else list(c.logprobs or ())
        if c.finish_reason is not None:
            self.generation.check_finish(c)
            choice.finish_reason = "length" if self.prompt_only else c.finish_reason
            choice.stop_reason = None if self.prompt_only else c.stop_reason
        if self.with_ids:
            choice.token_ids = token_ids
        if first:
            choice.text = self.echoes[i] + choice.text
            if self.with_ids:
                choice.prompt_token_ids = output.prompt_token_ids
            if self.prompt_texts is not None:
                choice.prompt_text = self.prompt_texts[i]
            if output.prompt_logprobs is not None:
                if (num_top := self.request.prompt_logprobs) is not None:
                    choice.prompt_logprobs = prompt_logprobs(output.prompt_logprobs, num_top)
                if self.request.echo:
                    token_ids = output.prompt_token_ids + token_ids
                    positions = output.prompt_logprobs + positions
        if self.request.logprobs is not None:
            choice.logprobs = completion_logprobs(
                token_ids,
                positions,
                self.generation.model.tokens,
                offsets,
                num_top=self.request.logprobs,
                as_ids=bool(self.request.return_tokens_as_token_ids),
            )
        return choice

    def _wants_tokens(self, c: CompletionOutput) -> bool:
        """Is there something to say of tokens whose text is still withheld?"""
        return bool(c.token_ids) and (self.with_ids or self.request.logprobs is not None)


ROUTES = (
    APIRoute(
        method="POST",
        path="/v1/completions",
        summary="Continue a text",
        handler=create_completion,
        request=CompletionRequest,
        unsupported=COMPLETION_UNSUPPORTED,
        response=Completion,
        event=Completion,
        queued=True,
    ),
)
