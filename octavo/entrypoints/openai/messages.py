"""Chat messages of the OpenAI API, checked and made into what chat templates expect.

Content parts become one text, joined by newlines as vLLM does; a null content is the empty text;
arguments of tool calls become objects. Nothing else is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.entrypoints.openai.errors import APIError, bad_request
from octavo.entrypoints.openai.protocol import ChatCompletionRequest, TokenizeRequest

if TYPE_CHECKING:
    from octavo.entrypoints.openai.state import ServedModel

_ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_RESERVED_KWARGS = frozenset(
    {
        *("messages", "tools", "add_generation_prompt", "continue_final_message"),
        *("chat_template", "tokenize", "return_dict", "return_tensors", "self"),
    }
)
MAX_TEMPLATE_KWARGS = 64


async def render_chat(
    request: ChatCompletionRequest | TokenizeRequest, model: ServedModel
) -> list[int]:
    """The prompt's token ids.

    Raises:
        APIError: the messages or the options are wrong.
        RequestError: the template refused them.
    """
    go_on = bool(request.continue_final_message)
    opens = request.add_generation_prompt
    if opens is None:
        opens = not go_on
    if opens and go_on:
        raise bad_request(
            "add_generation_prompt and continue_final_message exclude each other; set one",
            "continue_final_message",
        )
    messages = normalise_messages(request.messages or [])
    if go_on and messages[-1]["role"] != "assistant":
        raise bad_request(
            "continue_final_message needs a last message of the assistant, not of the "
            f"{messages[-1]['role']}",
            "continue_final_message",
        )
    options: dict[str, Any] = _template_kwargs(request.chat_template_kwargs or {})
    if tools := _tools(request):
        options["tools"] = tools
    ids = await model.engine.render_chat(
        messages, add_generation_prompt=opens, continue_final_message=go_on, **options
    )
    if request.add_special_tokens:
        ids = await model.engine.tokenize("") + ids
    return ids


def normalise_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as templates expect them. Raises APIError."""
    if not messages:
        raise bad_request("messages must hold at least one message", "messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    result = {key: value for key, value in message.items() if value is not None}
    role = result.get("role")
    if role not in _ROLES:
        raise _wrong(f"{where}.role={_short(role)} must be one of {', '.join(_ROLES)}")
    if role == "developer":  # OpenAI's new name; templates know the old one
        result["role"] = "system"
    calls = result.get("tool_calls")
    if calls is not None:
        if role != "assistant" or not isinstance(calls, list):
            raise _wrong(f"{where}.tool_calls must be a list, in a message of the assistant")
        result["tool_calls"] = [
            _tool_call(c, f"{where}.tool_calls[{i}]") for i, c in enumerate(calls)
        ]
    if "content" not in result and role != "assistant":
        raise _wrong(f"{where}.content is missing")
    result["content"] = _text(result.get("content", ""), f"{where}.content")
    return result


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(f"{where} must be text or a list of parts")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
        if key is None:
            raise _wrong(
                f"{where}[{i}] has the type {_short(kind)}; this model takes only parts of the "
                "type 'text'"
            )
        text = part.get(key)
        if not isinstance(text, str):
            raise _wrong(f"{where}[{i}].{key} must be a string")
        texts.append(text)
    return "\n".join(texts)


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _wrong(f"{where}.function.name is missing")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments) if arguments else {}
        except (msgspec.MsgspecError, RecursionError):
            raise _wrong(f"{where}.function.arguments is not valid JSON") from None
    if arguments is not None and not isinstance(arguments, dict):
        raise _wrong(f"{where}.function.arguments must be a JSON object")
    return {**call, "function": {**function, "arguments": arguments or {}}}


def _tools(request: ChatCompletionRequest | TokenizeRequest) -> list[dict[str, Any]]:
    """The tools for the template. Raises APIError."""
    tools = request.tools or []
    for i, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise bad_request(f"tools[{i}] must be of the type 'function' and have one", "tools")
        if not isinstance(function.get("name"), str):
            raise bad_request(f"tools[{i}].function.name is missing", "tools")
    choice = request.tool_choice if isinstance(request, ChatCompletionRequest) else None
    if choice in (None, "auto"):
        return tools
    if choice == "none":
        return []
    if not tools:
        raise bad_request("tool_choice needs tools", "tool_choice")
    raise bad_request(
        f"tool_choice={_short(choice)} is not supported by this server; use 'auto' or 'none'",
        "tool_choice",
    )


def _template_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if len(kwargs) > MAX_TEMPLATE_KWARGS:
        raise bad_request(
            f"chat_template_kwargs has {len(kwargs)} entries; at most {MAX_TEMPLATE_KWARGS}",
            "chat_template_kwargs",
        )
    for name in kwargs:
        if not name.isidentifier() or name in _RESERVED_KWARGS:
            raise bad_request(
                f"chat_template_kwargs must not hold {_short(name)}", "chat_template_kwargs"
            )
    return dict(kwargs)


def _wrong(message: str) -> APIError:
    return bad_request(message, "messages")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
