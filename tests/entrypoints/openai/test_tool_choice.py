"""What a forced call's grammar allows. The route is in test_chat_output.py."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.protocol import ChatCompletionRequest
from octavo.entrypoints.openai.tool_choice import chosen_tools, forced_calls
from octavo.structured.backend import GrammarError
from tests.structured.lab import accepts

POINT = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    function = {"name": name} if parameters is None else {"name": name, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    tool(
        "go",
        {
            "type": "object",
            "properties": {"to": {"$ref": "#/$defs/Point"}},
            "required": ["to"],
            "additionalProperties": False,
            "$defs": {"Point": POINT},
        },
    ),
    tool("stop"),
    tool("turn", {"properties": {"by": {"type": "number"}}, "definitions": {"X": {}}}),
    tool(
        "fold",
        {
            "type": "object",
            "properties": {"to": {"$ref": "#/$defs/Point"}, "more": {"$ref": "#"}},
            "required": ["to"],
            "$defs": {"Point": {"type": "string"}},
            "additionalProperties": False,
        },
    ),
]


def allows(text: str, tool_choice: Any, **fields: Any) -> bool:
    request = ChatCompletionRequest(messages=[], tools=TOOLS, tool_choice=tool_choice, **fields)
    params = forced_calls(request)
    assert params is not None
    return accepts(params, text)


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('[{"name": "go", "parameters": {"to": [1, 2]}}]', True),
        ('[{"name":"go","parameters":{"to":[1,2]}},{"name":"stop","parameters":{}}]', True),
        ('[{"name": "turn", "parameters": {"by": 1.5}}]', True),
        ('[{"name": "fold", "parameters": {"to": "x", "more": {"to": "y"}}}]', True),
        ('[{"name": "fold", "parameters": {"to": [1, 2]}}]', False),
        ('[{"name": "fold", "parameters": {"to": "x", "more": []}}]', False),
        ("[]", False),
        ('{"name": "stop", "parameters": {}}', False),
        ('[{"name": "fly", "parameters": {}}]', False),
        ('[{"name": "go", "parameters": {"to": [1]}}]', False),
        ('[{"name": "go", "parameters": {}}]', False),
        ('[{"name": "stop"}]', False),
        ('[{"name": "stop", "parameters": 5}]', False),
        ('[{"name": "stop", "parameters": {}, "more": 1}]', False),
        ("Hello", False),
    ],
)
def test_required(text: str, allowed: bool) -> None:
    assert allows(text, "required") == allowed


def test_one_call_where_they_are_not_parallel() -> None:
    call = '{"name": "stop", "parameters": {}}'
    assert allows(f"[{call}, {call}]", "required", parallel_tool_calls=True)
    assert allows(f"[{call}]", "required", parallel_tool_calls=False)
    assert not allows(f"[{call}, {call}]", "required", parallel_tool_calls=False)


def test_named() -> None:
    assert allows('{"to": [1, 2]}', named("go"))
    assert not allows('{"to": [1]}', named("go"))
    assert not allows("[1]", named("turn"))
    assert allows("{}", named("stop"))


def test_the_request_stays_as_it_is() -> None:
    """Definitions are moved in a copy: the template shows the tools as they came."""
    request = ChatCompletionRequest(messages=[], tools=TOOLS, tool_choice="required")
    forced_calls(request)
    assert chosen_tools(request)[0]["function"]["parameters"]["$defs"] == {"Point": POINT}


@pytest.mark.parametrize("choice", ["required", named("tag")])
def test_what_cannot_be_bound_is_an_error_where_the_function_is_strict(choice: Any) -> None:
    """vllm#16880: a tool whose schema has keywords that no grammar knows is called all the same."""
    words = {
        "type": "array",
        "items": {"type": "string", "pattern": "^(?!x).$"},
        "uniqueItems": True,
    }
    schema = {"type": "object", "properties": {"words": words}, "required": ["words"]}
    arguments = '{"words": ["x", "x"]}'
    said = arguments if choice != "required" else f'[{{"name": "tag", "parameters": {arguments}}}]'
    for strict in (None, False, True):
        function = {"name": "tag", "parameters": schema, "strict": strict}
        params = forced_calls(
            ChatCompletionRequest(
                messages=[], tools=[{"type": "function", "function": function}], tool_choice=choice
            )
        )
        assert params is not None
        if strict:
            with pytest.raises(GrammarError):
                accepts(params, said)
        else:
            assert accepts(params, said)
            assert not accepts(params, said.replace("words", "word"))


def allowed(mode: Any, *names: Any) -> dict[str, Any]:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]},
    }


def test_allowed_tools() -> None:
    """OpenAI's way to have a model call some of the tools only."""
    request = ChatCompletionRequest(
        messages=[], tools=TOOLS, tool_choice=allowed("auto", "stop", "go")
    )
    assert [t["function"]["name"] for t in chosen_tools(request)] == ["go", "stop"]
    assert forced_calls(request) is None
    assert allows('[{"name": "stop", "parameters": {}}]', allowed("required", "stop"))
    assert not allows('[{"name": "turn", "parameters": {}}]', allowed("required", "stop"))


@pytest.mark.parametrize(
    "choice",
    [
        allowed("none", "go"),
        allowed("auto"),
        allowed("auto", "fly"),
        allowed("required", 5),
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": "go"}},
        {"type": "custom", "custom": {"name": "go"}},
        {"type": "function"},
        "any",
    ],
)
def test_no_choice(choice: Any) -> None:
    request = ChatCompletionRequest(messages=[], tools=TOOLS, tool_choice=choice)
    with pytest.raises(APIError) as caught:
        chosen_tools(request)
    assert (caught.value.status, caught.value.param) == (400, "tool_choice")


def test_the_same_tool_twice_is_one() -> None:
    request = ChatCompletionRequest(messages=[], tools=[*TOOLS, *TOOLS], tool_choice="required")
    assert len(chosen_tools(request)) == 2 * len(TOOLS), "the template shows what came"
    params = forced_calls(request)
    assert params is not None
    assert accepts(params, '[{"name": "stop", "parameters": {}}]')


def test_a_type_need_not_be_said() -> None:
    function = {"name": "go"}
    request = ChatCompletionRequest(
        messages=[], tools=[{"function": function}], tool_choice={"function": function}
    )
    assert chosen_tools(request) == [{"type": "function", "function": function}]
    assert forced_calls(request) is not None


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_nothing_is_forced(choice: str | None) -> None:
    request = ChatCompletionRequest(messages=[], tools=TOOLS, tool_choice=choice)
    assert forced_calls(request) is None
    assert chosen_tools(request) == ([] if choice == "none" else TOOLS)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"type": "web_search"}, "tools[1]={'type': 'web_search'} must have the type 'function'"),
        ({"type": "function"}, "and an object 'function'"),
        (tool(""), "tools[1].function.name='' must be a text, and not empty"),
        ({"type": "function", "function": {}}, "name=None must be a text"),
        ({"type": "function", "function": {"name": "f", "parameters": 5}}, "a JSON schema"),
        (tool("f" * 257), "tools[1].function.name has 257 characters; at most 256"),
        (tool("stop", {}), "tools[0] and tools[1] differ, and both are named 'stop'"),
    ],
)
def test_malformed_tools(wrong: dict[str, Any], says: str) -> None:
    request = ChatCompletionRequest(messages=[], tools=[tool("stop"), wrong])
    with pytest.raises(APIError) as caught:
        chosen_tools(request)
    assert (caught.value.status, caught.value.param) == (400, "tools")
    assert says in caught.value.message
