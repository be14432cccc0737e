"""`tools` and `tool_choice` of a request: which tools the template gets, and what is forced.

A forced call is made by a grammar, as in vLLM: the answer is a JSON list of calls ("required"), or
the JSON arguments of one (a named function). The parsers of it are in `engine.parsers.forced`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from octavo.contracts.structured_outputs import StructuredOutputsParams
from octavo.engine.parsers.sections import MAX_NAME_CHARS
from octavo.entrypoints.openai.errors import bad_request
from octavo.entrypoints.openai.protocol import ChatCompletionRequest, TokenizeRequest
from octavo.errors import RequestError, shown


def chosen_tools(request: ChatCompletionRequest | TokenizeRequest) -> list[dict[str, Any]]:
    """The tools for the template: none where the model must not call any.

    Raises:
        APIError: a tool is malformed, or `tool_choice` is none of its values.
    """
    tools = _checked_tools(request.tools or ())
    names = [tool["function"]["name"] for tool in tools]
    choice, allowed = _choice_of(request)
    if choice == "none":
        return []
    if missing := (allowed or set()) - set(names):
        raise bad_request(
            f"tool_choice names the function {shown(min(missing))}; tools has "
            f"{shown(names) if names else 'none'}",
            "tool_choice",
        )
    if allowed is not None and forced_name(request) is None:
        tools = [tool for tool in tools if tool["function"]["name"] in allowed]
    if choice == "required" and not tools:
        raise bad_request(f"tool_choice={shown(choice)} needs tools; tools has none", "tool_choice")
    return tools


def _checked_tools(given: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    tools = [{"type": "function", **tool} for tool in given]
    earlier: dict[str, tuple[int, dict[str, Any]]] = {}
    for i, tool in enumerate(tools):
        function = tool.get("function")
        if tool["type"] != "function" or not isinstance(function, dict):
            raise bad_request(
                f"tools[{i}]={shown(tool)} must have the type 'function' and an object 'function'",
                "tools",
            )
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise bad_request(
                f"tools[{i}].function.name={shown(name)} must be a text, and not empty", "tools"
            )
        if len(name) > MAX_NAME_CHARS:
            raise bad_request(
                f"tools[{i}].function.name has {len(name)} characters; at most {MAX_NAME_CHARS}",
                "tools",
            )
        if not isinstance(function.get("parameters"), (dict, type(None))):
            raise bad_request(f"tools[{i}].function.parameters must be a JSON schema", "tools")
        first, same = earlier.setdefault(name, (i, function))
        if function != same:
            raise bad_request(
                f"tools[{first}] and tools[{i}] differ, and both are named {shown(name)}: a call "
                "could not be told apart; give each a name of its own",
                "tools",
            )
    return tools


def _choice_of(request: ChatCompletionRequest | TokenizeRequest) -> tuple[str, set[str] | None]:
    """auto, none or required; and the functions that may be called, where not all of them may.

    Raises:
        APIError: `tool_choice` is none of its values.
    """
    choice = request.tool_choice if isinstance(request, ChatCompletionRequest) else None
    if choice is None or choice in ("auto", "none", "required"):
        return str(choice or "auto"), None
    name = _function_name(choice)
    if name is not None:
        return "required", {name}
    options = choice if isinstance(choice, dict) else {}
    given = options.get("allowed_tools")
    if isinstance(given, dict) and options.get("type") == "allowed_tools":
        mode, tools = given.get("mode"), given.get("tools")
        names = {_function_name(tool) for tool in tools} if isinstance(tools, list) else set()
        allowed = {name for name in names if name is not None}
        if mode in ("auto", "required") and allowed and None not in names:
            return mode, allowed
    raise bad_request(
        f"tool_choice={shown(choice)} must be 'auto', 'none', 'required', "
        "{'type': 'function', 'function': {'name': …}}, or {'type': 'allowed_tools', "
        "'allowed_tools': {'mode': 'auto' or 'required', 'tools': [such functions]}}",
        "tool_choice",
    )


def _function_name(tool: Any) -> str | None:
    """The name in `{"type": "function", "function": {"name": …}}`."""
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        return None
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def forced_name(request: ChatCompletionRequest | TokenizeRequest) -> str | None:
    """The function that `tool_choice` names, if it does."""
    choice = request.tool_choice if isinstance(request, ChatCompletionRequest) else None
    return _function_name(choice)


def forces_call(request: ChatCompletionRequest) -> bool:
    """Whether `tool_choice` forces a call. Raises APIError: it is none of its values."""
    return _choice_of(request)[0] == "required"


def forced_calls(request: ChatCompletionRequest) -> StructuredOutputsParams | None:
    """What the answer must be where `tool_choice` forces a call, else None.

    Raises:
        APIError: as `chosen_tools`; or another field asks for another grammar.
    """
    tools = chosen_tools(request)
    if not forces_call(request):
        return None
    other = next(
        (n for n in ("response_format", "structured_outputs") if getattr(request, n) is not None),
        "use_beam_search" if request.use_beam_search else None,
    )
    if other is not None and request.response_format != {"type": "text"}:
        raise bad_request(
            f"tool_choice={shown(request.tool_choice)} does not go with {other}; give one of them",
            "tool_choice",
        )
    name = forced_name(request)
    try:
        functions = [tool["function"] for tool in tools]
        if name is None:
            schema = _schema_of_calls(functions, one=request.parallel_tool_calls is False)
        else:
            functions = [f for f in functions if f["name"] == name]
            schema = _schema_of_arguments(functions[0])
        if not any(function.get("strict") is True for function in functions):
            schema = leniently(schema)
        return StructuredOutputsParams(json=schema)
    except RequestError as error:
        raise bad_request(f"tools: {error}", "tools") from None
    except RecursionError:
        raise bad_request("tools: a schema is nested too deeply", "tools") from None


def _schema_of_arguments(function: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", **(function.get("parameters") or {"properties": {}})}


def leniently(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema as one that need not be kept to the last word: what of it cannot be bound by a
    grammar is left out, and no error."""
    options = schema.get("x-guidance", {})
    if not isinstance(options, dict):
        return schema  # which is refused
    return {**schema, "x-guidance": {"lenient": True, **options}}


def _schema_of_calls(functions: list[dict[str, Any]], *, one: bool) -> dict[str, Any]:
    """A list of calls. Each function's schema is a definition, and its references point there."""
    by_name = {function["name"]: function for function in functions}
    definitions = {}
    calls = []
    for i, (name, function) in enumerate(by_name.items()):
        place = f"#/$defs/{i}"
        definitions[str(i)] = _with_references_in(place, _schema_of_arguments(function))
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "parameters": {"$ref": place}},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    most = {"maxItems": 1} if one else {}
    return {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}, "$defs": definitions}


def _with_references_in(place: str, schema: Any) -> Any:
    """A copy of a schema that is to stand at `place`, and not at a root."""
    if isinstance(schema, list):
        return [_with_references_in(place, item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {key: _with_references_in(place, value) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        copy["$ref"] = place + reference[1:]
    return copy
