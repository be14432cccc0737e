"""Requests of the OpenAI API, with vLLM's additions: one struct per route, field by field.

Every field may be null, which is the same as absent; its default is in the docs below or in
`SamplingParams`. Fields that other servers know and this one does not honour are listed in the
`UNSUPPORTED` tables with the values that mean nothing is asked for.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo.contracts.sampling_limits import MAX_STOP_REGEXES, MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS

MAX_TOOLS = 1024
MAX_LABELS = 64
"""Entries of `metadata` and `chat_template_kwargs`."""
MAX_DOCUMENTS = 1024
MAX_TEMPLATE_CHARS = 64 * 1024


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of a stream.

    Attributes:
        include_usage: end with one chunk that has the usage and no choices.
        continuous_usage_stats: with include_usage, every chunk has the usage so far.
        include_progress: before the first token, chunks without choices tell how far the prompt is.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_progress: bool | None = None


class GenerationRequest(msgspec.Struct, kw_only=True):
    """What chat and plain completions have in common.

    The sampling fields are those of `SamplingParams`, which checks them.

    Attributes:
        model: a served name; absent is the first one.
        resumable: the stream goes on when its client has gone, and can be read again (`streams`).
        response_format: OpenAI's: text, json_object, json_schema, structural_tag.
        structured_outputs: the fields of `StructuredOutputsParams`.
        priority: lower runs first, where the server runs with --scheduling-policy priority.
        cache_salt: prefixes are shared only among requests of one salt.
        request_id: becomes a part of the response's id, as the header X-Request-Id does.
        return_token_ids: give ids of prompt and output too.
        logprob_token_ids: needs logprobs; these tokens are among the alternatives too.
        vllm_xargs: `SamplingParams.extra_args`, for logits processors.
        use_beam_search: n beams, of which all are returned, the best first.
        length_penalty, early_stopping: of a beam search, as in `BeamSearchParams`.
        return_tokens_as_token_ids: tokens in logprobs are spelled "token_id:17".
        add_special_tokens: begin the prompt as the tokenizer does (default: true for completions,
            false for chat, whose template does it).
        truncate_prompt_tokens: keep so many tokens of a longer prompt; -1: as many as fit.
        truncation_side: where tokens are left out: "left" (the default) or "right".
        return_prompt_text: give the prompt as the model sees it, special tokens included.
        user, safety_identifier, prompt_cache_key, metadata: the caller's own labels.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    resumable: bool | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stop_regex: str | Annotated[list[str], Meta(max_length=MAX_STOP_REGEXES)] | None = None
    stop_token_ids: Annotated[list[int], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    thinking_token_budget: int | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    repetition_detection: dict[str, Any] | None = None
    stream_interval: int | None = None
    max_time_ms: int | None = None
    ttft_deadline_ms: int | None = None
    vllm_xargs: Annotated[dict[str, Any], Meta(max_length=MAX_LABELS)] | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    return_prompt_text: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=MAX_LABELS)] | None = None


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    """POST /v1/chat/completions.

    Attributes:
        max_completion_tokens: most new tokens; wins over max_tokens. Absent: what fits the model.
        logprobs: give the log probability of every token, and of `top_logprobs` alternatives.
        tools: function definitions for the template.
        tool_choice: "auto", "none" (the tools are then kept from the template), "required",
            {"type": "function", "function": {"name": …}}, or {"type": "allowed_tools", …}.
        parallel_tool_calls: false: the first call alone is given.
        include_reasoning: false: reasoning is not given.
        reasoning_effort: a variable for the template, of the same name; "none" also clears
            `enable_thinking`, as the templates of several families call it.
        add_generation_prompt: let the template open the assistant's turn (default true).
        continue_final_message: go on with the last, assistant, message instead.
        chat_template_kwargs: more variables for the template.
        chat_template: used instead of the model's, with --trust-request-chat-template.
        documents: texts to answer from, for a template that shows them.
        echo: the answer begins with the last message, if that is the assistant's.
    """

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=MAX_LABELS)] | None = None
    chat_template: Annotated[str, Meta(max_length=MAX_TEMPLATE_CHARS)] | None = None
    documents: Annotated[list[dict[str, str]], Meta(max_length=MAX_DOCUMENTS)] | None = None
    echo: bool | None = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """POST /v1/completions.

    Attributes:
        prompt: text, token ids, or a list of either.
        max_tokens: default 16. 0 with `echo` only measures the prompt.
        logprobs: give the log probability of every token and of so many alternatives.
        best_of: generate so many completions, and return the n best of them.
        echo: the text begins with the prompt.
    """

    prompt: Any
    logprobs: int | None = None
    best_of: int | None = None
    echo: bool | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize: either `prompt` or `messages`; the other fields as in the chat request."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=MAX_LABELS)] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


_BOTH: dict[str, tuple[Any, ...]] = {
    "service_tier": ("auto", "default"),
    "store": (False,),
    "watermarking": (False,),
    "session_id": (),
    "return_token_offsets": (False,),
    "routed_experts_prompt_start": (0,),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
}

CHAT_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **_BOTH,
    "verbosity": ("medium",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "prompt_cache_retention": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "mm_payload": (),
}

COMPLETION_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **_BOTH,
    "suffix": ("",),
    "prompt_embeds": (),
}

TOKENIZE_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "chat_template": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
}
