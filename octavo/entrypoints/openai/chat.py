"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from octavo.entrypoints.openai.answers import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
)
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.chat_output import ChatOutput, answer_parsing
from octavo.entrypoints.openai.chat_prompt import echo_of, render_chat
from octavo.entrypoints.openai.errors import bad_request, json_response, renamed_params
from octavo.entrypoints.openai.generation import (
    Generation,
    UsageCounter,
    begin,
    progress_of,
    usage_of,
)
from octavo.entrypoints.openai.logprobs import chat_logprobs, prompt_logprobs
from octavo.entrypoints.openai.parsing import parse_body
from octavo.entrypoints.openai.prepared import PreparedRequest, check_num_logprobs, prepare
from octavo.entrypoints.openai.protocol import CHAT_UNSUPPORTED, ChatCompletionRequest
from octavo.entrypoints.openai.sse import EventStream, event
from octavo.entrypoints.openai.streams import resumable

if TYPE_CHECKING:
    from starlette.responses import Response

    from octavo.contracts.messages import CompletionOutput, RequestOutput
    from octavo.entrypoints.openai.endpoint import Call
    from octavo.entrypoints.openai.state import ServedModel


async def create_chat_completion(call: Call) -> Response | EventStream:
    """Answer one request: JSON, or a stream of events."""
    request = parse_body(call.take_body(), ChatCompletionRequest, CHAT_UNSUPPORTED)
    if request.resumable and request.stream:
        return resumable(call, lambda own: _begin(own, request))
    chat = await _begin(call, request)
    return EventStream(chat.events()) if request.stream else await chat.answer()


async def _begin(call: Call, request: ChatCompletionRequest) -> Chat:
    call.record.model = call.server.model(request.model).name
    prepared = await prepare_chat_completion(call, request)
    return await chat_of(request, begin(call, prepared, "chatcmpl-"))


async def chat_of(request: ChatCompletionRequest, generation: Generation) -> Chat:
    """The responses of a request whose generation has begun."""
    chat = Chat(request, generation, echo_of(request))
    if request.return_prompt_text:
        [chat.prompt_text] = await generation.prompt_texts()
    return chat


async def prepare_chat_completion(call: Call, request: ChatCompletionRequest) -> PreparedRequest:
    """Check a request. Raises as `prepare_chat`."""
    model = call.server.model(request.model)
    num_top = _num_top_logprobs(request, call.server.config.max_logprobs)
    max_tokens = request.max_completion_tokens
    field = "max_completion_tokens"
    if max_tokens is None:
        max_tokens, field = request.max_tokens, "max_tokens"
    if max_tokens is not None and max_tokens < 1:
        raise bad_request(f"{field}={max_tokens} must be at least 1", field)
    return await prepare_chat(
        call,
        request,
        model,
        max_tokens=max_tokens,
        logprobs=num_top,
        max_tokens_field=field,
    )


async def prepare_chat(
    call: Call,
    request: ChatCompletionRequest,
    model: ServedModel,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    max_tokens_field: str = "max_tokens",
    prompt_field: str = "messages",
    format_field: str = "response_format",
) -> PreparedRequest:
    """A chat, in whatever API it was asked for.

    Args:
        max_tokens_field, prompt_field, format_field: how that API calls `max_tokens`, `messages`
            and `response_format`.

    Raises:
        APIError, RequestError: what is wrong with the request.
    """
    if request.chat_template is not None and not call.server.config.trust_request_chat_template:
        raise bad_request(
            "chat_template is not taken by this server, which was started without "
            "--trust-request-chat-template; leave it out",
            "chat_template",
        )

    async def read_prompts() -> list[list[int]]:
        return [await render_chat(request, model)]

    with renamed_params({"messages": prompt_field, "max_tokens": max_tokens_field}):
        return await prepare(
            call,
            request,
            model,
            read_prompts,
            max_tokens=max_tokens,
            logprobs=logprobs,
            parsing=answer_parsing(request, model),
            prompt_field=prompt_field,
            format_field=format_field,
        )


def _num_top_logprobs(request: ChatCompletionRequest, limit: int) -> int | None:
    """`SamplingParams.logprobs` for chat: None without logprobs. Raises APIError."""
    num_top = request.top_logprobs
    if not request.logprobs:
        if num_top:
            raise bad_request("top_logprobs needs logprobs=true", "top_logprobs")
        return None
    if num_top is None:
        return 0
    check_num_logprobs("top_logprobs", num_top, limit)
    return num_top


class Chat:
    """Responses of one request.

    Args:
        echo: what every answer begins with.

    Attributes:
        prompt_text: the prompt, where the request wants to see it.
    """

    def __init__(self, request: ChatCompletionRequest, generation: Generation, echo: str) -> None:
        self.request = request
        self.generation = generation
        self.num_top = generation.params.logprobs
        self.with_ids = bool(request.return_token_ids)
        self.prompt_text: str | UnsetType = UNSET
        self._echo = echo
        self._parsing = generation.parsing
        self._parsed: dict[int, ChatOutput] = {}  # by index

    async def answer(self) -> Response:
        """The whole answer."""
        outputs = await self.generation.final()
        output = outputs[0]
        choices = [self._whole_choice(c) for c in output.outputs]
        prompt, num_prompt = output.prompt_logprobs, self.request.prompt_logprobs
        return json_response(
            ChatCompletion(
                id=self.generation.public_id,
                created=self.generation.created,
                model=self.generation.model.name,
                choices=choices,
                usage=usage_of(outputs),
                prompt_logprobs=UNSET
                if prompt is None or num_prompt is None
                else prompt_logprobs(prompt, num_prompt),
                prompt_token_ids=output.prompt_token_ids if self.with_ids else UNSET,
                prompt_text=self.prompt_text,
            )
        )

    def _whole_choice(self, c: CompletionOutput) -> ChatChoice:
        parsed = self._parsed_of(c)
        message = ChatMessage(content=c.text) if parsed is None else parsed.message(c.events or ())
        if self._echo:
            message.content = self._echo + (message.content or "")
        return ChatChoice(
            index=c.index,
            message=message,
            logprobs=self._logprobs(c),
            finish_reason=c.finish_reason
            if parsed is None
            else parsed.finish_reason(c.finish_reason),
            stop_reason=c.stop_reason,
            token_ids=c.token_ids if self.with_ids else UNSET,
        )

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The stream, an output's events together."""
        generation = self.generation
        include_usage, continuous = generation.stream_options(self.request)
        counter = UsageCounter(generation.prompts)
        chunk = ChatChunk(
            id=generation.public_id,
            created=generation.created,
            model=generation.model.name,
            choices=[],
            usage=counter.usage if continuous else None if include_usage else UNSET,
        )
        opened: set[int] = set()
        async with aclosing(generation.stream()) as outputs:
            async for i, output in outputs:
                if (progress := progress_of(i, output)) is not None:
                    yield event(msgspec.structs.replace(chunk, choices=[], progress=progress))
                    continue
                counter.add(i, output)
                data = b""
                for c in output.outputs:
                    if c.index not in opened:
                        opened.add(c.index)
                        data += self._opening(chunk, c.index, output)
                    delta = self._delta(c)
                    if delta is not None or c.finish_reason or self._wants_tokens(c):
                        chunk.choices = [self._choice(c, delta)]
                        data += event(chunk)
                if data:
                    yield data
        if include_usage:
            chunk.choices, chunk.usage = [], counter.usage
            yield event(chunk)

    def _opening(self, chunk: ChatChunk, index: int, output: RequestOutput) -> bytes:
        chunk.choices = [
            ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=self._echo))
        ]
        if self.with_ids:
            chunk.prompt_token_ids = output.prompt_token_ids
        chunk.prompt_text = self.prompt_text
        data = event(chunk)
        chunk.prompt_token_ids = chunk.prompt_text = UNSET
        return data

    def _parsed_of(self, c: CompletionOutput) -> ChatOutput | None:
        if self._parsing is None:
            return None
        parsed = self._parsed.get(c.index)
        if parsed is None:
            parsed = self._parsed[c.index] = ChatOutput(self._parsing)
        return parsed

    def _delta(self, c: CompletionOutput) -> ChatDelta | None:
        """What is new in an output; None: nothing that can be told."""
        parsed = self._parsed_of(c)
        if parsed is not None:
            return parsed.delta(c.events or ())
        return ChatDelta(content=c.text) if c.text else None

    def _choice(self, c: CompletionOutput, delta: ChatDelta | None) -> ChatChunkChoice:
        if delta is None:
            delta = ChatDelta(content="") if self._parsing is None else ChatDelta()
        choice = ChatChunkChoice(index=c.index, delta=delta, logprobs=self._logprobs(c))
        if self.with_ids:
            choice.token_ids = c.token_ids
        if c.finish_reason is not None:
            self.generation.check_finish(c)
            parsed = self._parsed_of(c)
            choice.finish_reason = (
                c.finish_reason if parsed is None else parsed.finish_reason(c.finish_reason)
            )
            choice.stop_reason = c.stop_reason
        return choice

    def _wants_tokens(self, c: CompletionOutput) -> bool:
        """Is there something to say of tokens whose text is still withheld?"""
        return bool(c.token_ids) and (self.with_ids or self.num_top is not None)

    def _logprobs(self, c: CompletionOutput) -> ChatLogprobs | None:
        if self.num_top is None or c.logprobs is None:
            return None
        return chat_logprobs(
            c.token_ids,
            c.logprobs,
            self.generation.model.tokens,
            num_top=self.num_top,
            as_ids=bool(self.request.return_tokens_as_token_ids),
        )


ROUTES = (
    APIRoute(
        method="POST",
        path="/v1/chat/completions",
        summary="Answer a chat",
        handler=create_chat_completion,
        request=ChatCompletionRequest,
        unsupported=CHAT_UNSUPPORTED,
        response=ChatCompletion,
        event=ChatChunk,
        queued=True,
    ),
)
