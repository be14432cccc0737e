"""A request of the Responses API as a chat request, so that one path answers both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from octavo.entrypoints.openai.errors import bad_request
from octavo.entrypoints.openai.protocol import ChatCompletionRequest, Effort
from octavo.entrypoints.openai.structured import RESPONSE_FORMATS
from octavo.entrypoints.responses.protocol import (
    INCLUDABLE,
    LOGPROBS,
    InputTokensRequest,
    ResponsesRequest,
)
from octavo.entrypoints.responses.reasoning import text_of
from octavo.errors import shown

_TEXT_PARTS = ("input_text", "output_text", "text")
_LABELS = {"type", "id", "status"}
_SUMMARIES = ("auto", "concise", "detailed")
"""Of `reasoning.summary`: all reasoning is given whatever it says."""


def chat_request(request: InputTokensRequest, items: Sequence[Any]) -> ChatCompletionRequest:
    """The same as a chat request.

    Args:
        items: the whole conversation.

    Raises:
        APIError: 400, an item, tool or option is malformed or not supported.
    """
    if not items:
        raise _wrong("input must hold at least one item")
    messages = [] if not request.instructions else [_message("system", request.instructions)]
    for i, item in enumerate(items):
        _add_item(messages, f"input[{i}]", item)
    chat = ChatCompletionRequest(
        model=request.model,
        messages=messages,
        chat_template_kwargs=request.chat_template_kwargs,
        tools=[_tool(f"tools[{i}]", tool) for i, tool in enumerate(request.tools or ())] or None,
        tool_choice=_tool_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls,
        response_format=_response_format(request.text),
        reasoning_effort=_effort(request.reasoning),
    )
    if isinstance(request, ResponsesRequest):
        chat.stream = request.stream or request.background
        chat.temperature = request.temperature
        chat.top_p = request.top_p
        chat.top_k = request.top_k
        chat.seed = request.seed
        chat.stop = request.stop
        chat.cache_salt = request.cache_salt
    return chat


def input_items(value: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`input` as items."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    return value


def wants_logprobs(request: ResponsesRequest) -> bool:
    """Whether log probabilities are to be given. Raises APIError: it includes something else."""
    included = request.include or []
    for name in included:
        if name not in INCLUDABLE:
            raise bad_request(
                f"include={shown(name)} is not supported by this server; it can include "
                f"{', '.join(INCLUDABLE)}",
                "include",
            )
    if request.top_logprobs and LOGPROBS not in included:
        raise bad_request(f"top_logprobs needs include=[{LOGPROBS!r}]", "top_logprobs")
    return LOGPROBS in included


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _add_item(messages: list[dict[str, Any]], where: str, item: dict[str, Any]) -> None:
    """What the model says between two other messages is one message of the assistant."""
    kind = item.get("type", "message")
    if kind == "message":
        _check_fields(where, item, {"role", "content", "phase"})
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise _wrong(f"{where}.role={shown(role)} must be user, assistant, system or developer")
        text = _text(f"{where}.content", item.get("content"))
        if role != "assistant":
            messages.append(_message(role, text))
            return
        message = _assistant(messages)
        message["content"] += text
    elif kind == "function_call":
        _check_fields(where, item, {"call_id", "name", "arguments"})
        call_id, name, arguments = (
            _string(where, item, field) for field in ("call_id", "name", "arguments")
        )
        call = {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        _assistant(messages).setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        _check_fields(where, item, {"call_id", "output"})
        call_id = _string(where, item, "call_id")
        output = _text(f"{where}.output", item.get("output"))
        messages.append({**_message("tool", output), "tool_call_id": call_id})
    elif kind == "reasoning":
        text = _reasoning(where, item)
        message = _assistant(messages)
        message["reasoning_content"] = message.get("reasoning_content", "") + text
    else:
        raise _wrong(
            f"{where}: an item of type {shown(kind)} is not supported; supported: message, "
            "function_call, function_call_output, reasoning"
        )


def _reasoning(where: str, item: dict[str, Any]) -> str:
    """The text of a reasoning item: its content, what a client carried of it, or its summary."""
    _check_fields(where, item, {"content", "summary", "encrypted_content"})
    if content := item.get("content"):
        return _text(f"{where}.content", content, ("reasoning_text",))
    if item.get("encrypted_content") is None:
        return _text(f"{where}.summary", item.get("summary") or "", ("summary_text",))
    text = text_of(_string(where, item, "encrypted_content"))
    if text is None:
        raise _wrong(f"{where}.encrypted_content was not made here; leave the item out")
    return text


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message that is being put together."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append(_message("assistant", ""))
    return messages[-1]


def _text(where: str, value: Any, kinds: Iterable[str] = _TEXT_PARTS) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise _wrong(f"{where} must be text or a list of parts")
    texts = []
    for i, part in enumerate(value):
        if part.get("type") not in kinds:
            raise _wrong(
                f"{where}[{i}]: a part of type {shown(part.get('type'))} is not supported here; "
                f"supported: {', '.join(kinds)}"
            )
        texts.append(_string(f"{where}[{i}]", part, "text"))
    return "\n".join(texts)


def _string(where: str, value: Mapping[str, Any], name: str, param: str = "input") -> str:
    text = value.get(name)
    if not isinstance(text, str):
        raise bad_request(f"{where}.{name}={shown(text)} must be text", param)
    return text


def _check_fields(
    where: str, value: Mapping[str, Any], known: set[str], param: str = "input"
) -> None:
    for name, item in value.items():
        if name not in known | _LABELS and item is not None:
            raise bad_request(f"{where} has the unsupported field {shown(name)}", param)


def _wrong(message: str) -> Exception:
    return bad_request(message, "input")


def _tool(where: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise bad_request(
            f"{where}: a tool of type {shown(tool.get('type'))} would run on the server, which "
            "runs none; give functions",
            "tools",
        )
    _check_fields(where, tool, {"name", "description", "parameters", "strict"}, "tools")
    function = {k: v for k, v in tool.items() if k in ("name", "description", "parameters")}
    return {
        "type": "function",
        "function": {**function, "name": _string(where, tool, "name", "tools")},
    }


def _tool_choice(choice: str | dict[str, Any] | None) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    if isinstance(choice, dict):
        raise bad_request(
            f"tool_choice={shown(choice)} must be 'auto', 'none', 'required' or "
            "{'type': 'function', 'name': …}",
            "tool_choice",
        )
    return choice


def _response_format(text: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if text is None:
        return None
    for name, value in text.items():
        if name != "format" and (name, value) != ("verbosity", "medium") and value is not None:
            raise bad_request(f"text.{name}={shown(value)} is not supported by this server", "text")
    form = text.get("format")
    if form is None:
        return None
    if not isinstance(form, dict):
        raise bad_request(f"text.format={shown(form)} must be an object", "text")
    kind = form.get("type")
    if kind not in RESPONSE_FORMATS:
        raise bad_request(
            f"text.format.type={shown(kind)} must be one of {', '.join(RESPONSE_FORMATS)}", "text"
        )
    if kind != "json_schema":
        return form
    if "schema" not in form:
        raise bad_request(f"text.format={shown(form)} has no schema, which this type needs", "text")
    return {"type": "json_schema", "json_schema": {k: v for k, v in form.items() if k != "type"}}


def _effort(reasoning: Mapping[str, Any] | None) -> Any:
    for name, value in (reasoning or {}).items():
        is_summary = name == "summary" and value in _SUMMARIES
        if name != "effort" and not is_summary and value is not None:
            raise bad_request(
                f"reasoning.{name}={shown(value)} is not supported by this server", "reasoning"
            )
    effort = (reasoning or {}).get("effort")
    if effort is not None and effort not in get_args(Effort):
        raise bad_request(
            f"reasoning.effort={shown(effort)} must be one of {', '.join(get_args(Effort))}",
            "reasoning",
        )
    return effort
