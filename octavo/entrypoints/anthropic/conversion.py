"""A request of the Messages API as a chat request, so that one path answers both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from octavo.entrypoints.anthropic.protocol import CountTokensRequest, MessagesRequest
from octavo.entrypoints.openai.errors import bad_request
from octavo.entrypoints.openai.protocol import ChatCompletionRequest, Effort
from octavo.errors import shown

_MARKS = {"type", "cache_control"}
"""Every block and tool may have these; prefixes are cached without `cache_control` too."""
_BILLING_HEADER = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
"""What Claude Code puts in front of its system prompt: a line for Anthropic's accounts, with a hash
that differs in every request. In the prompt it would keep all that follows from being cached."""

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_request(request: CountTokensRequest) -> ChatCompletionRequest:
    """The same as a chat request.

    Raises:
        APIError: 400, a message, block, tool or option is malformed or not supported.
    """
    messages = _messages(request)
    choice, parallel = _tool_choice(request.tool_choice)
    thinks, shows, budget = _thinking(request.thinking)
    options = {} if thinks is None else {"enable_thinking": thinks}
    chat = ChatCompletionRequest(
        model=request.model,
        messages=messages,
        tools=[_tool(f"tools[{i}]", tool) for i, tool in enumerate(request.tools or ())] or None,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        response_format=_response_format(request.output_config),
        reasoning_effort=_effort(request.output_config),
        thinking_token_budget=budget,
        include_reasoning=shows,
        continue_final_message=messages[-1]["role"] == "assistant",
        chat_template_kwargs={**options, **(request.chat_template_kwargs or {})} or None,
    )
    if isinstance(request, MessagesRequest):
        chat.max_tokens = request.max_tokens
        chat.stop = request.stop_sequences
        chat.stream = request.stream
        chat.temperature = request.temperature
        chat.top_p = request.top_p
        chat.top_k = request.top_k
        chat.cache_salt = request.cache_salt
        chat.vllm_xargs = request.vllm_xargs
    return chat


def _messages(request: CountTokensRequest) -> list[dict[str, Any]]:
    if not request.messages:
        raise bad_request("messages must hold at least one message", "messages")
    messages: list[dict[str, Any]] = []
    system = _BILLING_HEADER.sub("", _text("system", request.system or ""))
    if system:
        messages.append({"role": "system", "content": system})
    for i, message in enumerate(request.messages):
        where = f"messages[{i}]"
        role = message.get("role")
        if not isinstance(role, str) or role not in _OF_ROLE:
            raise bad_request(
                f"{where}.role={shown(role)} must be one of {', '.join(_OF_ROLE)}", "messages"
            )
        _check_fields(where, message, {"role", "content"}, "messages")
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not all(isinstance(b, dict) for b in blocks):
            raise bad_request(f"{where}.content must be text or a list of blocks", "messages")
        messages += _OF_ROLE[role](f"{where}.content", blocks)
    return messages


def _user_messages(where: str, blocks: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Results of calls, each a message of the role tool, and the user's text."""
    texts = []
    for i, block in enumerate(blocks):
        at = f"{where}[{i}]"
        kind = block.get("type")
        if kind == "text":
            texts.append(_block_text(at, block))
        elif kind == "tool_result":
            _check_fields(at, block, {"tool_use_id", "content", "is_error"}, "messages")
            call_id, result = block.get("tool_use_id"), block.get("content")
            if not isinstance(call_id, str):
                raise bad_request(f"{at}.tool_use_id={shown(call_id)} must be text", "messages")
            text = "" if result is None else _text(f"{at}.content", result, "messages")
            if block.get("is_error"):
                text = f"Error: {text}"
            yield {"role": "tool", "tool_call_id": call_id, "content": text}
        else:
            raise _unsupported(at, kind, "text, tool_result")
    if texts or not blocks:
        yield {"role": "user", "content": "\n".join(texts)}


def _assistant_messages(where: str, blocks: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    texts, thoughts, calls = [], [], []
    for i, block in enumerate(blocks):
        at = f"{where}[{i}]"
        kind = block.get("type")
        if kind == "text":
            texts.append(_block_text(at, block))
        elif kind == "thinking":
            _check_fields(at, block, {"thinking", "signature"}, "messages")
            thoughts.append(_string(at, block, "thinking"))
        elif kind == "redacted_thinking":
            continue  # only who encrypted it can read it
        elif kind == "tool_use":
            _check_fields(at, block, {"id", "name", "input", "caller"}, "messages")
            arguments = block.get("input")
            if not isinstance(arguments, dict):
                raise bad_request(f"{at}.input={shown(arguments)} must be an object", "messages")
            function = {"name": _string(at, block, "name"), "arguments": json.dumps(arguments)}
            calls.append({"id": _string(at, block, "id"), "type": "function", "function": function})
        else:
            raise _unsupported(at, kind, "text, thinking, redacted_thinking, tool_use")
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)  # the templates' name for it
    if calls:
        message["tool_calls"] = calls
    yield message


def _system_messages(where: str, blocks: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """What the model is told in the middle of a conversation."""
    yield {"role": "system", "content": _text(where, blocks, "messages")}


_OF_ROLE = {
    "user": _user_messages,
    "assistant": _assistant_messages,
    "system": _system_messages,
}


def _text(where: str, value: Any, param: str | None = None) -> str:
    """Text, or text blocks joined."""
    param = param or where
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(block, dict) for block in value):
        raise bad_request(f"{where} must be text or a list of text blocks", param)
    texts = []
    for i, block in enumerate(value):
        if block.get("type") != "text":
            raise _unsupported(f"{where}[{i}]", block.get("type"), "text", param)
        texts.append(_block_text(f"{where}[{i}]", block, param))
    return "\n".join(texts)


def _block_text(where: str, block: Mapping[str, Any], param: str = "messages") -> str:
    _check_fields(where, block, {"text", "citations"}, param)
    if block.get("citations"):
        raise bad_request(f"{where}.citations are not supported; leave them out", param)
    return _string(where, block, "text", param)


def _string(where: str, block: Mapping[str, Any], name: str, param: str = "messages") -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{where}.{name}={shown(value)} must be text", param)
    return value


def _check_fields(where: str, value: Mapping[str, Any], known: set[str], param: str) -> None:
    for name, item in value.items():
        if name not in known | _MARKS and item is not None:
            raise bad_request(f"{where} has the unsupported field {shown(name)}", param)


def _unsupported(where: str, kind: Any, supported: str, param: str = "messages") -> Exception:
    return bad_request(
        f"{where}: a block of type {shown(kind)} is not supported here; supported: {supported}",
        param,
    )


def _tool(where: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    kind = tool.get("type") or "custom"
    if kind != "custom":
        raise bad_request(
            f"{where}: a tool of type {shown(kind)} would run on the server, which runs none; give "
            "functions, with a name and an input_schema",
            "tools",
        )
    known = {"name", "description", "input_schema", "strict", "eager_input_streaming"}
    _check_fields(where, tool, known, "tools")
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise bad_request(f"{where}.input_schema={shown(schema)} must be a JSON schema", "tools")
    function = {"name": _string(where, tool, "name", "tools"), "parameters": schema}
    if tool.get("description") is not None:
        function["description"] = _string(where, tool, "description", "tools")
    return {"type": "function", "function": function}


def _tool_choice(choice: Mapping[str, Any] | None) -> tuple[Any, bool | None]:
    """OpenAI's `tool_choice` and `parallel_tool_calls`."""
    if choice is None:
        return None, None
    _check_fields("tool_choice", choice, {"name", "disable_parallel_tool_use"}, "tool_choice")
    parallel = False if choice.get("disable_parallel_tool_use") else None
    kind = choice.get("type")
    if kind == "tool":
        name = _string("tool_choice", choice, "name", "tool_choice")
        return {"type": "function", "function": {"name": name}}, parallel
    if not isinstance(kind, str) or kind not in _CHOICES or choice.get("name") is not None:
        raise bad_request(
            f"tool_choice={shown(choice)} must be of the type auto, any or none, or of the type "
            "tool with a name",
            "tool_choice",
        )
    return _CHOICES[kind], parallel


def _thinking(thinking: Mapping[str, Any] | None) -> tuple[bool | None, bool, int | None]:
    """Whether the template is to let the model think, whether that is shown, and most tokens."""
    if thinking is None:
        return None, False, None
    kind = thinking.get("type")
    known = {"enabled": {"budget_tokens", "display"}, "adaptive": {"display"}, "disabled": set()}
    if not isinstance(kind, str) or kind not in known:
        raise bad_request(
            f"thinking.type={shown(kind)} must be enabled, adaptive or disabled", "thinking"
        )
    _check_fields("thinking", thinking, known[kind], "thinking")
    display = thinking.get("display") or "summarized"
    if display not in ("summarized", "omitted"):
        raise bad_request(
            f"thinking.display={shown(display)} must be summarized or omitted", "thinking"
        )
    budget = thinking.get("budget_tokens")
    if kind == "enabled" and (type(budget) is not int or budget < 0):
        raise bad_request(
            f"thinking.budget_tokens={shown(budget)} must be a number of tokens", "thinking"
        )
    return kind != "disabled", kind != "disabled" and display == "summarized", budget


def _response_format(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if config is None:
        return None
    _check_fields("output_config", config, {"format", "effort"}, "output_config")
    form = config.get("format")
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") != "json_schema" or "schema" not in form:
        raise bad_request(
            f"output_config.format={shown(form)} must be of the type json_schema, with a schema",
            "output_config",
        )
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": form["schema"]}}


def _effort(config: Mapping[str, Any] | None) -> Any:
    effort = (config or {}).get("effort")
    if effort is not None and effort not in get_args(Effort):
        raise bad_request(
            f"output_config.effort={shown(effort)} must be one of {', '.join(get_args(Effort))}",
            "output_config",
        )
    return effort
