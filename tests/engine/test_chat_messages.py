from __future__ import annotations

from typing import Any

import pytest

from octavo.engine.chat_messages import (
    MAX_CHARS,
    MAX_DEPTH,
    MAX_VALUES,
    last_content,
    map_strings,
    normal_messages,
    normal_tools,
    strings_in,
)
from octavo.errors import RequestError


def call(arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"id": "1", "type": "function", "function": function, **more}


def test_content_becomes_text() -> None:
    parts = [{"type": "text", "text": "Hello"}, {"type": "input_text", "text": "World"}, "!"]
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call()]},
        {"role": "tool", "content": [], "tool_call_id": "1"},
        {"role": "tool", "content": None, "tool_call_id": "2"},
        {"role": "assistant"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ]
    contents = [m["content"] for m in normal_messages(messages)]
    assert contents == ["S", "Hello\nWorld\n!", "", "", "", "", "", "No."]


def test_null_is_absent() -> None:
    message = {"role": "user", "content": "x", "name": None, "tool_calls": None, "extra": 0}
    assert normal_messages([message]) == [{"role": "user", "content": "x", "extra": 0}]
    assert normal_messages([{"role": "assistant", "content": "x", "tool_calls": []}]) == [
        {"role": "assistant", "content": "x"}
    ]


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        ('{"a": [1, "x"]}', {"a": [1, "x"]}),
        ("", {}),
        (None, {}),
        ("null", {}),
        ({"a": 1}, {"a": 1}),
        ("5", 5),
    ],
)
def test_arguments_of_tool_calls_are_parsed(arguments: Any, parsed: Any) -> None:
    (message,) = normal_messages([{"role": "assistant", "tool_calls": [call(arguments)]}])
    assert message["tool_calls"] == [call(parsed)]


def test_the_callers_messages_are_not_changed() -> None:
    messages = [{"role": "assistant", "content": None, "tool_calls": [call('{"a": 1}')]}]
    normal_messages(messages)
    assert messages == [{"role": "assistant", "content": None, "tool_calls": [call('{"a": 1}')]}]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (None, "messages=None must be a list"),
        ([], "at least one message"),
        ("hi", "must be a list"),
        ({"role": "user"}, "must be a list"),
        (["hi"], r"messages\[0\]='hi' must be an object"),
        ([{"content": "x"}], "role=None must be one of system, developer, user"),
        ([{"role": "hacker", "content": "x"}], "role='hacker' must be one of"),
        ([{"role": ["user"], "content": "x"}], "role="),
        *(
            ([{"role": role, **content}], f"role {role} must have content")
            for role in ("system", "developer", "user")
            for content in ({}, {"content": None})
        ),
        ([{"role": "user", "content": 5}], r"messages\[0\]: content=5 must be text"),
        ([{"role": "user", "content": {"text": "x"}}], "must be text, a list of parts"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "'image_url' is not supported"),
        ([{"role": "user", "content": [{"text": "x"}]}], "part of type None"),
        ([{"role": "user", "content": [5]}], "part of type 5"),
        ([{"role": "user", "content": [{"type": "text"}]}], "text=None must be text"),
        ([{"role": "assistant", "tool_calls": {}}], "tool_calls={} must be a list"),
        ([{"role": "assistant", "tool_calls": [{}]}], "must have a function with a name"),
        ([{"role": "assistant", "tool_calls": [call("{")]}], "not valid JSON"),
        ([{"role": "assistant", "tool_calls": [call("[" * 10**5)]}], "not valid JSON"),
        ([{"role": "user", "content": "x"}] * 70_000, "70000 messages"),
    ],
)
def test_faults_name_the_message(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        normal_messages(messages)
    assert caught.value.param == "messages"


def test_tools() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert normal_tools(None) is None
    assert normal_tools([]) is None
    assert normal_tools([tool]) == [tool]
    for wrong in ("x", {}, [5], [None], 7):
        with pytest.raises(RequestError, match="tools="):
            normal_tools(wrong)


def test_strings_and_their_change() -> None:
    value = {"a": ["b", {"c": 1, "d": None}], "e": (True, 2.5, "f")}
    assert sorted(strings_in(value, "x")) == ["a", "b", "c", "d", "e", "f"]
    changed = map_strings(value, str.upper)
    assert changed == {"A": ["B", {"C": 1, "D": None}], "E": [True, 2.5, "F"]}


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (nested(100_000), "nested deeper than"),
        (nested(MAX_DEPTH + 1), "nested deeper than"),
        (["x" * (MAX_CHARS // 2), "x" * (MAX_CHARS // 2 + 1)], "more than 16777216 characters"),
        ([0] * MAX_VALUES, "more than 262144 values"),
        ([{"a": 0}] * (MAX_VALUES // 3 + 1), "more than 262144 values"),
        ({"a": b"x"}, "of type bytes, which JSON has not"),
        ([object], "of type type"),
    ],
)
def test_what_no_template_gets_to_see(value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        list(strings_in(value, "tools"))
    assert caught.value.param == "tools"
    list(strings_in(nested(MAX_DEPTH), "tools"))


def test_what_can_be_continued() -> None:
    user, assistant = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}
    assert last_content([user, assistant]) == "y"
    with pytest.raises(RequestError, match="not 'user'"):
        last_content([assistant, user])
    with pytest.raises(RequestError, match="tool calls"):
        last_content([user, assistant | {"tool_calls": [call()]}])
