"""Chat messages as users send them (OpenAI's shape), checked and made what templates expect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from octavo.errors import RequestError, shown

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Types of parts that are text → their field that has it."""
MAX_MESSAGES = 1 << 16
MAX_CHARS = 1 << 24
MAX_VALUES = 1 << 18
"""Values of messages, tools or variables, keys included: whoever looks at each holds the
interpreter for a microsecond or two."""
MAX_DEPTH = 64
_NEED_CONTENT = ("system", "developer", "user")


def normal_messages(messages: Any) -> list[dict[str, Any]]:
    """Copies of the messages in one form.

    `content` is always a string: parts are joined with a line feed (as vLLM does for templates that
    take strings), and null is "", in the assistant's messages and results of tools, which may say
    nothing. Other fields that are null are left out. `arguments` of tool calls are parsed where
    they are JSON text.

    Raises:
        RequestError: what is wrong, and in which message.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise _error(f"messages={shown(messages)} must be a list with at least one message")
    if len(messages) > MAX_MESSAGES:
        raise _error(f"there are {len(messages)} messages; {MAX_MESSAGES} are possible")
    return [_normal_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


def developer_as_system(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages for a template that does not know OpenAI's newer name of the role `system`: it
    would leave them out, or refuse them."""
    return [{**m, "role": "system"} if m["role"] == "developer" else {**m} for m in messages]


def normal_tools(tools: Any) -> list[dict[str, Any]] | None:
    """The tools, or None where there are none (null and [] mean that). Raises RequestError."""
    if tools is None:
        return None
    if not isinstance(tools, (list, tuple)) or not all(isinstance(t, Mapping) for t in tools):
        raise RequestError(f"tools={shown(tools)} must be a list of objects", param="tools")
    return [dict(tool) for tool in tools] or None


def strings_in(value: Any, where: str) -> Iterator[str]:
    """All strings of a JSON-like value, keys included.

    Raises:
        RequestError: nested too deep, too long, too much, or of a type that JSON does not have.
    """
    num_chars = num_values = 0
    stack = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        num_values += 1
        if num_values + len(stack) > MAX_VALUES:
            raise RequestError(f"{where}: more than {MAX_VALUES} values", param=where)
        if isinstance(item, str):
            num_chars += len(item)
            if num_chars > MAX_CHARS:
                raise RequestError(f"{where}: more than {MAX_CHARS} characters", param=where)
            yield item
        elif depth >= MAX_DEPTH:
            raise RequestError(f"{where}: nested deeper than {MAX_DEPTH}", param=where)
        elif isinstance(item, Mapping):
            stack.extend((part, depth + 1) for pair in item.items() for part in pair)
        elif isinstance(item, (list, tuple)):
            stack.extend((part, depth + 1) for part in item)
        elif item is not None and not isinstance(item, (bool, int, float)):
            raise RequestError(
                f"{where}: {shown(item)} is of type {type(item).__name__}, which JSON has not",
                param=where,
            )


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A deep copy of a value that `strings_in` has passed, with every string changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_strings(k, change): map_strings(v, change) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [map_strings(item, change) for item in value]
    return value


def _normal_message(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _error(f"{where}={shown(message)} must be an object with role and content")
    role = message.get("role")
    if role not in ROLES:
        raise _error(f"{where}: role={shown(role)} must be one of {', '.join(ROLES)}")
    normal = {key: value for key, value in message.items() if value is not None}
    content = message.get("content")
    if content is None and role in _NEED_CONTENT:
        raise _error(f"{where}: a message of the role {role} must have content: text, or parts")
    normal["content"] = _text(f"{where}: content", content)
    if "tool_calls" in normal:
        normal["tool_calls"] = _tool_calls(f"{where}: tool_calls", normal["tool_calls"])
        if not normal["tool_calls"]:
            del normal["tool_calls"]
    return normal


def _text(where: str, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise _error(f"{where}={shown(content)} must be text, a list of parts, or null")
    return "\n".join(_part(f"{where}[{i}]", part) for i, part in enumerate(content))


def _part(where: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else part
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        raise _error(f"{where}: part of type {shown(kind)} is not supported; supported: text")
    field = TEXT_PARTS[kind]
    text = part.get(field)
    if not isinstance(text, str):
        raise _error(f"{where}: {field}={shown(text)} must be text")
    return text


def _tool_calls(where: str, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, (list, tuple)):
        raise _error(f"{where}={shown(calls)} must be a list")
    normal = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise _error(f"{where}[{i}]={shown(call)} must have a function with a name")
        arguments = _arguments(f"{where}[{i}]", function.get("arguments"))
        normal.append({**call, "function": {**function, "arguments": arguments}})
    return normal


def _arguments(where: str, arguments: Any) -> Any:
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
        return {} if parsed is None else parsed
    except (ValueError, RecursionError) as error:
        raise _error(f"{where}: arguments are not valid JSON: {str(error)[:200]}") from None


def _error(message: str) -> RequestError:
    return RequestError(message, param="messages")


def last_content(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text that `continue_final_message` continues. Raises RequestError if there is none."""
    last = messages[-1]
    if last["role"] != "assistant":
        raise RequestError(
            f"continue_final_message needs a last message of role assistant, not {last['role']!r}",
            param="continue_final_message",
        )
    if last.get("tool_calls"):
        raise RequestError(
            "continue_final_message cannot continue a message with tool calls",
            param="continue_final_message",
        )
    content: str = last["content"]
    return content
