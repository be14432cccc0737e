"""Calls in JSON: names of all kinds, and what models write that is not quite JSON."""

from __future__ import annotations

import json

import pytest

from tests.engine.parsers.lab import Case, check


def tool(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name}}


def hermes(arguments: str, value: object) -> Case:
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    return Case("hermes", text, [("f", value)], tools=[tool("f")])


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ("{}", {}),
        ("null", {}),
        ('""', {}),
        ('"{}"', {}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('"text"', "text"),
        ("5", 5),
        ("[1, 2]", [1, 2]),
        ('{"a": true, "b": null, "c": -0.5, "d": 12345678901234567890, "e": []}', None),
        ('{"command": "mkdir -p a/{b,c"}', None),
        ('{"a": "}\\"]{"}', None),
        ('{"name": "x", "arguments": {"y": 1}}', None),
        ('{"a": "\\u4f60\\ud83d\\ude00 é 你"}', {"a": "你😀 é 你"}),
        ('{"a": "one\ntwo\tthree"}', {"a": "one\ntwo\tthree"}),
        ('{"a": "one\\\ntwo"}', {"a": "one\ntwo"}),
        ("{\"a\": \"it\\'s\", \"b\": \"\\d+\"}", {"a": "it's", "b": "\\d+"}),
        ('{"a": [1, 2, ], "b": {"c": 1,\n},}', {"a": [1, 2], "b": {"c": 1}}),
        ('{"a": "1,}"}', None),
    ],
)  # fmt: skip
def test_arguments(arguments: str, value: object) -> None:
    """vllm#9693, #21544, #28806, #48702, llama.cpp#26658: valid JSON, an object where nothing was
    given."""
    check(hermes(arguments, json.loads(arguments) if value is None else value))


def test_a_brace_too_many() -> None:
    check(Case("hermes", '<tool_call>{"name": "get_time", "arguments": {}}}\n</tool_call>ok',
               [("get_time", {})], "ok"))  # fmt: skip


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        ("hermes", '<tool_call>{{"name": "{}", "arguments": {{}}}}</tool_call>'),
        ("llama3_json", '{{"name": "{}", "parameters": {{}}}}'),
        ("mistral", "[TOOL_CALLS]{}[ARGS]{{}}"),
        ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁sep｜>{{}}"),
        ("qwen3_coder", "<tool_call><function={}></function></tool_call>"),
        ("qwen3_coder", "<function={}></function></tool_call>"),
        ("pythonic", "[{}()]"),
        ("openai", "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{{}}"),
    ],
)
@pytest.mark.parametrize("name", ["web-search", "my tool", "天气", "a@b$c", "mcp__x.y/z:1"])
def test_names(tool_format: str, text: str, name: str) -> None:
    """A function of the request is called whatever its name is."""
    check(Case(tool_format, text.format(name), [(name, {})], tools=[tool(name)]))


def test_a_name_that_is_none() -> None:
    text = '<tool_call>{"name": "my tool"}</tool_call>'
    check(Case("hermes", text, content=text))
