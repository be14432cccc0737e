"""POST /v1/messages, /v1/messages/render and /v1/messages/count_tokens."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from octavo.contracts.answer_events import CallBegin, Content, Event, Reasoning
from octavo.entrypoints.anthropic.conversion import chat_request
from octavo.entrypoints.anthropic.errors import PATH, AnthropicError, anthropic_failure
from octavo.entrypoints.anthropic.protocol import (
    UNSUPPORTED,
    Block,
    BlockEvent,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    CountTokensRequest,
    InputJsonDelta,
    Message,
    MessageDelta,
    MessageEnd,
    MessageEvent,
    MessagesRequest,
    MessageStart,
    MessageStop,
    MessageUsage,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    TokenCount,
    ToolUseBlock,
)
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.chat import prepare_chat
from octavo.entrypoints.openai.chat_prompt import render_chat
from octavo.entrypoints.openai.errors import bad_request, json_response
from octavo.entrypoints.openai.generate import GenerateRequest
from octavo.entrypoints.openai.generation import UsageCounter, begin, usage_of
from octavo.entrypoints.openai.parsing import parse_body
from octavo.entrypoints.openai.render import rendered_chat
from octavo.entrypoints.openai.sse import EventStream, named_event

if TYPE_CHECKING:
    from starlette.responses import Response

    from octavo.contracts.messages import CompletionOutput
    from octavo.entrypoints.openai.answers import Usage
    from octavo.entrypoints.openai.endpoint import Call
    from octavo.entrypoints.openai.generation import Generation
    from octavo.entrypoints.openai.prepared import PreparedRequest
    from octavo.entrypoints.openai.protocol import ChatCompletionRequest

UNPARSED = "_unparsed"
"""The only key of a whole call's `input` whose text is no JSON object, as where it was cut."""


async def create_message(call: Call) -> Response | EventStream:
    """Answer one request: JSON, or a stream of events."""
    request = parse_body(call.take_body(), MessagesRequest, UNSUPPORTED)
    call.record.model = call.server.model(request.model).name
    generation = begin(call, await _prepare(call, request, chat_request(request)), "msg_")
    if request.stream:
        return EventStream(_events(generation), failure=anthropic_failure, done=b"")
    return json_response(await _whole(generation))


async def render_message(call: Call) -> Response:
    """What a message asks of the engine."""
    request = parse_body(call.take_body(), MessagesRequest, UNSUPPORTED)
    chat = chat_request(request)
    prepared = await _prepare(call, request, chat)
    return json_response(await rendered_chat(chat, prepared, stop_field="stop_sequences"))


async def _prepare(
    call: Call, request: MessagesRequest, chat: ChatCompletionRequest
) -> PreparedRequest:
    """Check a request, of which `chat` is the same as a chat. Raises as `prepare_chat`."""
    if request.max_tokens < 1:
        raise bad_request(f"max_tokens={request.max_tokens} must be at least 1", "max_tokens")
    model = call.server.model(request.model)
    return await prepare_chat(call, chat, model, max_tokens=request.max_tokens, logprobs=None)


async def count_tokens(call: Call) -> Response:
    """How many tokens the prompt of a message would have."""
    request = parse_body(call.take_body(), CountTokensRequest, UNSUPPORTED)
    ids = await render_chat(chat_request(request), call.server.model(request.model))
    return json_response(TokenCount(len(ids)))


async def _whole(generation: Generation) -> Message:
    outputs = await generation.final()
    (completion,) = outputs[0].outputs
    blocks = ContentBlocks(generation)
    blocks.take(generation.events(completion))
    end = blocks.ended(completion)
    return Message(
        id=generation.public_id,
        model=generation.model.name,
        content=blocks.blocks,
        stop_reason=end.stop_reason,
        stop_sequence=end.stop_sequence,
        usage=_usage(usage_of(outputs)),
    )


async def _events(generation: Generation) -> AsyncGenerator[bytes, None]:
    counter = UsageCounter(generation.prompts)
    blocks = ContentBlocks(generation)
    started = False
    async with aclosing(generation.stream()) as outputs:
        async for i, output in outputs:
            counter.add(i, output)
            data = b""
            if not started:
                started = True
                message = Message(
                    id=generation.public_id,
                    model=generation.model.name,
                    content=[],
                    usage=_usage(counter.usage),
                )
                data = named_event(MessageStart(message=message))
            for completion in output.outputs:
                generation.check_finish(completion)
                events = blocks.take(generation.events(completion))
                if completion.finished:
                    events += blocks.close()
                data += b"".join(map(named_event, events))
                if completion.finished:
                    end = MessageDelta(delta=blocks.ended(completion), usage=_usage(counter.usage))
                    data += named_event(end) + named_event(MessageStop())
            if data:
                yield data


def _usage(usage: Usage) -> MessageUsage:
    cached = usage.prompt_tokens_details.cached_tokens
    return MessageUsage(
        input_tokens=usage.prompt_tokens - cached,
        output_tokens=usage.completion_tokens,
        cache_read_input_tokens=cached,
    )


class ContentBlocks:
    """The blocks of a message as its events come.

    Attributes:
        blocks: those that have begun.
    """

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self.blocks: list[Block] = []
        self._input: list[str] = []  # JSON text of the call that is open
        self._is_open = False

    def take(self, events: Iterable[Event]) -> list[BlockEvent]:
        """What more of the answer means to the blocks."""
        told: list[BlockEvent] = []
        for event in events:
            if isinstance(event, CallBegin):
                parsing = self._generation.parsing
                assert parsing is not None
                told += self._begin(ToolUseBlock(id=parsing.new_call_id("toolu_"), name=event.name))
                continue
            block = self.blocks[-1] if self._is_open else None
            delta: Any
            if isinstance(event, Content):
                if not isinstance(block, TextBlock):
                    block = TextBlock()
                    told += self._begin(block)
                block.text += event.text
                delta = TextDelta(text=event.text)
            elif isinstance(event, Reasoning):
                if not isinstance(block, ThinkingBlock):
                    block = ThinkingBlock()
                    told += self._begin(block)
                block.thinking += event.text
                delta = ThinkingDelta(thinking=event.text)
            else:
                self._input.append(event.text)
                delta = InputJsonDelta(partial_json=event.text)
            told.append(ContentBlockDelta(index=len(self.blocks) - 1, delta=delta))
        return told

    def close(self) -> list[BlockEvent]:
        """The block that is open is complete."""
        if not self._is_open:
            return []
        self._is_open = False
        block = self.blocks[-1]
        if isinstance(block, ToolUseBlock):
            block.input, self._input = _input("".join(self._input)), []
        return [ContentBlockStop(index=len(self.blocks) - 1)]

    def ended(self, completion: CompletionOutput) -> MessageEnd:
        """Why the message ended, all blocks closed."""
        self.close()
        stop = completion.stop_reason
        if completion.finish_reason == "length":
            return MessageEnd(stop_reason="max_tokens", stop_sequence=None)
        if any(isinstance(block, ToolUseBlock) for block in self.blocks):
            return MessageEnd(stop_reason="tool_use", stop_sequence=None)
        if isinstance(stop, str):
            return MessageEnd(stop_reason="stop_sequence", stop_sequence=stop)
        return MessageEnd(stop_reason="end_turn", stop_sequence=None)

    def _begin(self, block: Block) -> list[BlockEvent]:
        closed = self.close()
        self.blocks.append(block)
        self._is_open = True
        # A copy: the block grows, and the event may be written later.
        empty = type(block)(**{name: getattr(block, name) for name in block.__struct_fields__})
        return [*closed, ContentBlockStart(index=len(self.blocks) - 1, content_block=empty)]


def _input(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {UNPARSED: text}


ROUTES = (
    APIRoute(
        method="POST",
        path=PATH,
        summary="Answer a message (Anthropic's API)",
        handler=create_message,
        request=MessagesRequest,
        unsupported=UNSUPPORTED,
        response=Message,
        event=MessageEvent,
        error=AnthropicError,
        queued=True,
    ),
    APIRoute(
        method="POST",
        path=f"{PATH}/render",
        summary="What a message asks of /inference/v1/generate",
        handler=render_message,
        request=MessagesRequest,
        unsupported=UNSUPPORTED,
        response=GenerateRequest,
        error=AnthropicError,
        queued=True,
    ),
    APIRoute(
        method="POST",
        path=f"{PATH}/count_tokens",
        summary="The number of a message's prompt tokens (Anthropic's API)",
        handler=count_tokens,
        request=CountTokensRequest,
        unsupported=UNSUPPORTED,
        response=TokenCount,
        error=AnthropicError,
        queued=True,
    ),
)
