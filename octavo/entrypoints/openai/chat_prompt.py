"""From a chat request to the prompt's token ids. `Tokenizer` checks the messages, off the loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from octavo.engine.chat_messages import normal_messages, strings_in
from octavo.entrypoints.openai.errors import bad_request
from octavo.entrypoints.openai.protocol import ChatCompletionRequest, TokenizeRequest
from octavo.entrypoints.openai.tool_choice import chosen_tools

if TYPE_CHECKING:
    from octavo.entrypoints.openai.state import ServedModel

_OWN_FIELDS = (
    *("messages", "tools", "add_generation_prompt", "continue_final_message", "self"),
    "chat_template",
)


async def render_chat(
    request: ChatCompletionRequest | TokenizeRequest, model: ServedModel
) -> list[int]:
    """The prompt's token ids.

    `add_generation_prompt` is true unless the final message is to be continued.

    Raises:
        APIError, RequestError: the messages or the options are wrong, or the template refused them.
    """
    go_on = bool(request.continue_final_message)
    opens = request.add_generation_prompt
    options: dict[str, Any] = dict(request.chat_template_kwargs or {})
    for name in _OWN_FIELDS:
        if name in options:
            raise bad_request(
                f"chat_template_kwargs must not hold {name!r}", "chat_template_kwargs"
            )
    if isinstance(request, ChatCompletionRequest) and request.reasoning_effort is not None:
        options.setdefault("reasoning_effort", request.reasoning_effort)
        if request.reasoning_effort == "none":
            options.setdefault("enable_thinking", False)
    if isinstance(request, ChatCompletionRequest):
        if request.chat_template is not None:
            options["chat_template"] = request.chat_template
        if request.documents:
            _check_documents(request, model, options)
            options["documents"] = request.documents
    tools = chosen_tools(request)
    documents = request.documents if isinstance(request, ChatCompletionRequest) else None
    num_chars = 0
    for name, value in (
        ("messages", request.messages),
        ("tools", tools),
        ("chat_template_kwargs", request.chat_template_kwargs),
        ("documents", documents),
    ):
        if value:
            num_chars += await asyncio.to_thread(_num_chars, value, name)
            await model.engine.check_num_chars(num_chars, name)
    ids = await model.engine.render_chat(
        request.messages or [],
        add_generation_prompt=not go_on if opens is None else opens,
        continue_final_message=go_on,
        tools=tools or None,
        **options,
    )
    if request.add_special_tokens:
        ids = await model.engine.tokenize("") + ids
    return ids


def echo_of(request: ChatCompletionRequest) -> str:
    """What `echo` puts before an answer: the last message, if that is the assistant's. The messages
    must have been rendered."""
    if not request.echo:
        return ""
    (last,) = normal_messages(request.messages[-1:])
    text: str = last["content"]
    return text if last["role"] == "assistant" else ""


def _check_documents(
    request: ChatCompletionRequest, model: ServedModel, options: dict[str, Any]
) -> None:
    if "documents" in options:
        raise bad_request("documents are in chat_template_kwargs too; give them once", "documents")
    source = request.chat_template
    if source is None:
        source = model.engine.tokenizer.chat_template_source
    if "documents" not in source:
        raise bad_request(
            "the chat template shows no documents; put them into a message", "documents"
        )


def _num_chars(value: Any, param: str) -> int:
    """Characters that a template gets to see of a value. Raises RequestError: it is no JSON."""
    return sum(map(len, strings_in(value, param)))
