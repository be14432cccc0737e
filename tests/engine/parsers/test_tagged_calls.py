"""Calls in tags: values of the types that the schema has, and tags that are missing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.parsers.lab import Case, check

PROPERTIES: dict[str, Any] = {
    "text": {"type": "string"},
    "whole": {"type": "integer"},
    "number": {"type": "number"},
    "flag": {"type": ["boolean", "null"]},
    "optional": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "optional_text": {"type": ["string", "null"]},
    "either": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    "all": {"allOf": [{"$ref": "#/$defs/Point"}]},
    "point": {"$ref": "#/$defs/Point"},
    "endless": {"$ref": "#/$defs/Endless"},
    "elsewhere": {"$ref": "http://x/y"},
    "one_of_two": {"enum": [1, 2]},
    "yes": {"const": True},
    "nullable": {"type": "integer", "nullable": True},
    "list": {"type": "array"},
    "anything": {},
}
PARAMETERS = {
    "type": "object",
    "properties": PROPERTIES,
    "$defs": {"Point": {"type": "object"}, "Endless": {"anyOf": [{"$ref": "#/$defs/Endless"}]}},
}
TOOL: dict[str, object] = {
    "type": "function",
    "function": {"name": "f", "parameters": PARAMETERS},
}


def case(text: str, *calls: dict[str, Any], **fields: Any) -> Case:
    return Case("qwen3_coder", text, [("f", call) for call in calls], tools=[TOOL], **fields)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "5", "5"),
        ("text", "null", "null"),
        ("text", "", ""),
        ("text", "one\ntwo\n", "one\ntwo\n"),
        ("text", '<b>"x"</b> & \\', '<b>"x"</b> & \\'),
        ("whole", "5", 5),
        ("whole", "5.0", 5),
        ("whole", "five", "five"),
        ("whole", "", ""),
        ("number", "-1.5e3", -1500.0),
        ("number", "NaN", "NaN"),
        ("number", "1e999", "1e999"),
        ("flag", "false", False),
        ("flag", "True", True),
        ("flag", "None", None),
        ("optional", "5", 5),
        ("optional", "null", None),
        ("optional_text", "5", "5"),
        ("optional_text", "null", None),
        ("either", "5", 5),
        ("either", "five", "five"),
        ("all", '{"x": 1}', {"x": 1}),
        ("point", "{'x': True, 'y': None}", {"x": True, "y": None}),
        ("point", "{'x': {1}}", "{'x': {1}}"),
        ("endless", "5", "5"),
        ("elsewhere", "5", "5"),
        ("one_of_two", "1", 1),
        ("yes", "true", True),
        ("nullable", "null", None),
        ("list", '["</function>"]', ["</function>"]),
        ("anything", '{"x": 1}', {"x": 1}),
        ("anything", "5", "5"),
        ("unknown", "5", "5"),
    ],
)
def test_values(key: str, text: str, value: object) -> None:
    """vllm#37831, #43363, sglang#27640, #30832: optional ones, unions and references too."""
    answer = f"<tool_call>\n<function=f>\n<parameter={key}>\n{text}\n</parameter>\n</function>"
    check(case(answer, {key: value}))


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        (
            "<tool_call><function=f><parameter=text>a</parameter></function></tool_call>b",
            [{"text": "a"}],
            "b",
        ),
        (
            "<tool_call>\n<function=f>\n<parameter=text>\na\n<parameter=whole>\n2\n</function>",
            [{"text": "a", "whole": 2}],
            "",
        ),
        (
            "<tool_call>\n<function=f>\n<parameter=text>\na\n</parameter>\n</tool_call>",
            [{"text": "a"}],
            "",
        ),
        ("So <function=f></function>\n</tool_call>", [{}], "So"),
        ("<function=g></function>", [], "<function=g></function>"),
        ('<tool_call>{"name": "f", "arguments": {"text": "a"}}</tool_call>', [{"text": "a"}], ""),
    ],
)
def test_tags(text: str, calls: list[dict[str, Any]], content: str) -> None:
    """sglang#15135: what is missing is made up for."""
    check(case(text, *calls, content=content))


def test_a_function_without_a_schema() -> None:
    tools: list[dict[str, object]] = [
        {"type": "function", "function": {"name": "f", "parameters": None}}
    ]
    text = "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>"
    check(Case("qwen3_coder", text, [("f", {"a": "1"})], tools=tools))
