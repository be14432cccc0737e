"""Responses of the OpenAI API, with vLLM's additions. `UNSET` fields are left out of the JSON.

A stream keeps one chunk struct and changes its few fields per event: encoding it takes about a
microsecond, which is why these are msgspec structs.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct):
    """`cached_tokens`: prompt tokens that came from the prefix cache."""

    cached_tokens: int = 0


class Usage(msgspec.Struct, kw_only=True):
    """Tokens of a request: each prompt once, all completions."""

    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails = msgspec.field(default_factory=PromptTokensDetails)


class Progress(msgspec.Struct, kw_only=True):
    """How far a prompt is that has no token yet.

    Attributes:
        index: which of the request's prompts.
        queue_position: requests that wait before it; null: it does not wait any more.
        prompt_tokens_processed: computed, or from the prefix cache.
    """

    index: int
    queue_position: int | None
    prompt_tokens: int
    prompt_tokens_processed: int


# -------------------------------------------------------------------- logprobs


class TopLogprob(msgspec.Struct):
    """An alternative. `bytes` are the token's own, also where it is a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """One token of a chat completion."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Logprobs of a chat choice."""

    content: list[TokenLogprob]


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Logprobs of a completion choice; the lists run in parallel.

    Attributes:
        text_offset: where each token begins in the choice's whole text, in characters.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(msgspec.Struct):
    """A token of the prompt, under its id."""

    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobs = list[dict[str, PromptLogprob] | None]

# -------------------------------------------------------------------- chat


class FunctionCall(msgspec.Struct):
    """A function and its arguments: JSON text, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """One call."""

    id: str
    type: str = "function"
    function: FunctionCall


class ChatMessage(msgspec.Struct, kw_only=True):
    """What the assistant says. `content` is null where there are reasoning or calls alone."""

    role: str = "assistant"
    content: str | None = None
    refusal: str | None = None
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One of n."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """Answer to POST /v1/chat/completions. `prompt_text` is what the prompt's ids spell."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET


class FunctionCallDelta(msgspec.Struct):
    """More of a call: its name comes first, and once."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCallDelta(msgspec.Struct, kw_only=True):
    """News of one call; `id` and `type` come with its name."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionCallDelta


class ChatDelta(msgspec.Struct, kw_only=True):
    """What is new."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """News of one of n."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """An event of a chat stream. One that tells of progress has no choices."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    progress: Progress | UnsetType = UNSET
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET


# -------------------------------------------------------------------- completions


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One of n completions of one of the prompts, or what is new of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """Answer to POST /v1/completions, and an event of its stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    progress: Progress | UnsetType = UNSET
    usage: Usage | UnsetType | None = UNSET


# -------------------------------------------------------------------- the rest


class Health(msgspec.Struct):
    """Answer to GET /health."""

    status: str = "ok"


class Load(msgspec.Struct):
    """Answer to GET /load: HTTP requests in progress."""

    server_load: int


class Version(msgspec.Struct):
    """Answer to GET /version."""

    version: str


class ModelCard(msgspec.Struct, kw_only=True):
    """A served model."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "octavo"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(msgspec.Struct, kw_only=True):
    """Answer to GET /v1/models."""

    object: str = "list"
    data: list[ModelCard]


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """Answer to POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    """Answer to POST /detokenize."""

    prompt: str
