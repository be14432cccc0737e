"""Requests, answers and events of OpenAI's Responses API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo.contracts.sampling_limits import MAX_STOP_STRINGS
from octavo.entrypoints.openai.answers import PromptTokensDetails, TokenLogprob
from octavo.entrypoints.openai.protocol import MAX_LABELS, MAX_TOOLS

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
INCLUDABLE = (LOGPROBS, ENCRYPTED_REASONING)
"""What `include` can add."""


class InputTokensRequest(msgspec.Struct, kw_only=True):
    """POST /v1/responses/input_tokens.

    Attributes:
        input: text, or items: messages, function calls and their outputs, reasoning.
        model: a served name; absent is the first one.
        instructions: a system message for this response only.
        tools: functions.
        tool_choice: "auto", "none", "required", or {"type": "function", "name": …}.
        text: {"format": …}: text, json_object or json_schema.
        reasoning: {"effort": …}, as `reasoning_effort` of chats. All reasoning is given.
        previous_response_id: the conversation so far, as the server keeps it.
        truncation: "disabled": a prompt that is too long is an error.
        chat_template_kwargs: as in a chat.
    """

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    previous_response_id: str | None = None
    truncation: Literal["disabled"] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=MAX_LABELS)] | None = None


class ResponsesRequest(InputTokensRequest, kw_only=True):
    """POST /v1/responses.

    Attributes:
        max_output_tokens: most new tokens, reasoning included.
        include: of `INCLUDABLE`; log probabilities are with `top_logprobs` alternatives.
        store: keep it (default true).
        background: answer at once, and go on without the client.
        metadata: given back with the response.
        user, safety_identifier, prompt_cache_key, client_metadata: the caller's own labels.
        top_k, seed, stop, cache_salt: as in a chat.
    """

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=MAX_LABELS)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    client_metadata: Annotated[dict[str, str], Meta(max_length=MAX_LABELS)] | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    cache_salt: str | None = None


UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "access_programs": (),
    "background_options": (),
    "context_management": (),
    "conversation": (),
    "image": (),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "service_tier": ("auto", "default"),
    "stream_options": ({}, {"include_obfuscation": False}),
    "previous_input_messages": (),
    "enable_response_messages": (False,),
}
"""Fields that are known elsewhere, and the values that ask for nothing."""


class RetrieveQuery(msgspec.Struct, kw_only=True):
    """GET /v1/responses/ID: `stream` gives the events of a background response again, those after
    the sequence number `starting_after`."""

    stream: bool = False
    starting_after: int = -1


class InputItemsQuery(msgspec.Struct, kw_only=True):
    """GET /v1/responses/ID/input_items: a page of items, behind the one with the id `after`."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


# -------------------------------------------------------------------- output items


class OutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text"):
    """Text for the reader."""

    text: str = ""
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] = []


class ReasoningText(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """Text of the model's reasoning."""

    text: str = ""


class MessageItem(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """What the assistant says."""

    id: str
    status: str = "in_progress"
    role: str = "assistant"
    content: list[OutputText] = []


class ReasoningItem(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """The model's reasoning, all of it. `encrypted_content`, where asked for, is the same once
    more (`reasoning.py`)."""

    id: str
    status: str = "in_progress"
    summary: list[Any] = []
    content: list[ReasoningText] = []
    encrypted_content: str | None = None


class FunctionCallItem(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call. Its output comes back under `call_id`."""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: str = "in_progress"


OutputItem = MessageItem | ReasoningItem | FunctionCallItem


# -------------------------------------------------------------------- the response


class ResponseError(msgspec.Struct):
    """Why a response failed."""

    code: str
    message: str


class OutputTokensDetails(msgspec.Struct):
    """Reasoning is counted with the rest: which tokens it has is not known."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, kw_only=True):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: PromptTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class Response(msgspec.Struct, kw_only=True):
    """A response, at any time.

    Attributes:
        status: "queued", "in_progress", "completed", "incomplete", "failed", "cancelled".
        incomplete_details: {"reason": "max_output_tokens"}.
    """

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    background: bool
    error: ResponseError | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None


class InputTokens(msgspec.Struct, kw_only=True):
    """Answer to POST /v1/responses/input_tokens."""

    object: str = "response.input_tokens"
    input_tokens: int


class ItemList(msgspec.Struct, kw_only=True):
    """Answer to GET /v1/responses/ID/input_items."""

    object: str = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(msgspec.Struct, kw_only=True):
    """Answer to DELETE /v1/responses/ID."""

    id: str
    object: str = "response.deleted"
    deleted: bool = True


# -------------------------------------------------------------------- events


class _Event(msgspec.Struct, kw_only=True, tag_field="type"):
    sequence_number: int


class _ResponseEvent(_Event, kw_only=True):
    response: Response


class Created(_ResponseEvent, kw_only=True, tag="response.created"):
    """The first event."""


class Queued(_ResponseEvent, kw_only=True, tag="response.queued"):
    """It waits, in the background."""


class InProgress(_ResponseEvent, kw_only=True, tag="response.in_progress"):
    """It is being made."""


class Completed(_ResponseEvent, kw_only=True, tag="response.completed"):
    """It is complete."""


class Incomplete(_ResponseEvent, kw_only=True, tag="response.incomplete"):
    """It was cut."""


class Failed(_ResponseEvent, kw_only=True, tag="response.failed"):
    """It failed."""


class _ItemEvent(_Event, kw_only=True):
    output_index: int
    item: OutputItem


class ItemAdded(_ItemEvent, kw_only=True, tag="response.output_item.added"):
    """An item begins, still empty."""


class ItemDone(_ItemEvent, kw_only=True, tag="response.output_item.done"):
    """An item is complete."""


class _PartEvent(_Event, kw_only=True):
    item_id: str
    output_index: int
    content_index: int = 0


class PartAdded(_PartEvent, kw_only=True, tag="response.content_part.added"):
    """An item's part begins, still empty."""

    part: OutputText | ReasoningText


class PartDone(_PartEvent, kw_only=True, tag="response.content_part.done"):
    """A part is complete."""

    part: OutputText | ReasoningText


class TextDelta(_PartEvent, kw_only=True, tag="response.output_text.delta"):
    """More text."""

    delta: str
    logprobs: list[TokenLogprob] = []


class TextDone(_PartEvent, kw_only=True, tag="response.output_text.done"):
    """The text is complete."""

    text: str
    logprobs: list[TokenLogprob] = []


class ReasoningDelta(_PartEvent, kw_only=True, tag="response.reasoning_text.delta"):
    """More reasoning."""

    delta: str


class ReasoningDone(_PartEvent, kw_only=True, tag="response.reasoning_text.done"):
    """The reasoning is complete."""

    text: str


class ArgumentsDelta(_Event, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(_Event, kw_only=True, tag="response.function_call_arguments.done"):
    """A call's arguments are complete."""

    item_id: str
    output_index: int
    name: str
    arguments: str


StateEvent = Created | Queued | InProgress | Completed | Incomplete | Failed
ContentEvent = (
    TextDelta | TextDone | ReasoningDelta | ReasoningDone | ArgumentsDelta | ArgumentsDone
)
ResponseEvent = StateEvent | ItemAdded | ItemDone | PartAdded | PartDone | ContentEvent
