"""Requests, answers and events of Anthropic's Messages API."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from octavo.contracts.sampling_limits import MAX_STOP_STRINGS
from octavo.entrypoints.openai.protocol import MAX_LABELS, MAX_TOOLS


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """POST /v1/messages/count_tokens.

    Attributes:
        messages: of the roles user, assistant and system, with text, thinking, tool_use and
            tool_result blocks. Where the last one is the assistant's, the answer continues it.
        model: a served name.
        system: text, or text blocks.
        tools: functions: name, description, input_schema.
        tool_choice: {"type": "auto" | "any" | "none"}, or {"type": "tool", "name": …}, each (but
            none) with `disable_parallel_tool_use`.
        thinking: {"type": "enabled", "budget_tokens": …}, {"type": "adaptive"} or
            {"type": "disabled"}; the first two may have a `display`, "summarized" or "omitted".
        output_config: {"format": {"type": "json_schema", "schema": …}}, {"effort": …}.
        chat_template_kwargs: more variables for the template.
    """

    model: str
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=MAX_LABELS)] | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """POST /v1/messages.

    Attributes:
        max_tokens: most new tokens.
        stop_sequences: where the text ends.
        cache_salt: cached prefixes are shared only within one salt.
        metadata: the caller's own label, `user_id`.
        vllm_xargs: for logits processors, as in a chat.
    """

    max_tokens: int
    stop_sequences: Annotated[list[str], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    cache_salt: str | None = None
    metadata: Annotated[dict[str, str | None], Meta(max_length=MAX_LABELS)] | None = None
    vllm_xargs: Annotated[dict[str, Any], Meta(max_length=MAX_LABELS)] | None = None


UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "cache_control": (
        {"type": "ephemeral"},
        *({"type": "ephemeral", "ttl": ttl} for ttl in ("5m", "1h")),
    ),
    "container": (),
    "context_management": (
        {},
        {"edits": []},
        {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    ),
    "diagnostics": (),
    "inference_geo": (),
    "kv_transfer_params": (),
    "mcp_servers": ([],),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "user_profile_id": (),
    "workspace_id": (),
}
"""Fields that are known elsewhere, and the values that ask for nothing."""


class TokenCount(msgspec.Struct):
    """Answer to POST /v1/messages/count_tokens."""

    input_tokens: int


class MessageUsage(msgspec.Struct, kw_only=True):
    """Tokens. `input_tokens` are those that did not come from the prefix cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class TextBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    """Text for the reader."""

    text: str = ""


class ThinkingBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking"):
    """The model's reasoning. The signature is empty: it is not encrypted."""

    thinking: str = ""
    signature: str = ""


class ToolUseBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    """A call. Where a stream's block begins, `input` is {}."""

    id: str
    name: str
    input: dict[str, Any] = {}


Block = TextBlock | ThinkingBlock | ToolUseBlock


class Message(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """Answer to POST /v1/messages.

    Attributes:
        stop_reason: "end_turn", "max_tokens", "stop_sequence", "tool_use".
        stop_sequence: the one that ended it.
    """

    id: str
    role: str = "assistant"
    model: str
    content: list[Block]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


# -------------------------------------------------------------------- events


class MessageStart(msgspec.Struct, kw_only=True, tag_field="type", tag="message_start"):
    """The first event: the message, still empty."""

    message: Message


class ContentBlockStart(msgspec.Struct, kw_only=True, tag_field="type", tag="content_block_start"):
    """A block begins, still empty."""

    index: int
    content_block: Block


class TextDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="text_delta"):
    """More of a text block."""

    text: str


class ThinkingDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking_delta"):
    """More of a thinking block."""

    thinking: str


class InputJsonDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="input_json_delta"):
    """More of the JSON text of a call's input."""

    partial_json: str


class ContentBlockDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="content_block_delta"):
    """More of the block that has begun."""

    index: int
    delta: TextDelta | ThinkingDelta | InputJsonDelta


class ContentBlockStop(msgspec.Struct, kw_only=True, tag_field="type", tag="content_block_stop"):
    """The block is complete."""

    index: int


class MessageEnd(msgspec.Struct, kw_only=True):
    """What is known of a message at its end."""

    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="message_delta"):
    """How it ended."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(msgspec.Struct, kw_only=True, tag_field="type", tag="message_stop"):
    """The last event."""


BlockEvent = ContentBlockStart | ContentBlockDelta | ContentBlockStop
MessageEvent = MessageStart | BlockEvent | MessageDelta | MessageStop
