"""Answers that a grammar made to be calls."""

from __future__ import annotations

import json

import pytest

from octavo.contracts.answer_events import ParsedMessage
from octavo.engine.parsers.forced import NamedCallParser, required_calls_parser
from octavo.engine.parsers.parser import OutputParser

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
CALLS = '[{"name": "f", "parameters": {"x": "]}\\""}} , {"name":"g","parameters":{}}]'


def parse(parser: OutputParser, text: str, size: int) -> ParsedMessage:
    message = ParsedMessage()
    for at in range(0, len(text), size):
        message.add(parser.feed(text[at : at + size]))
    return message.add(parser.finish())


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_required(size: int) -> None:
    message = parse(required_calls_parser(TOOLS), CALLS, size)
    assert [(c.name, json.loads(c.arguments)) for c in message.calls] == [
        ("f", {"x": ']}"'}),
        ("g", {}),
    ]
    assert message.content == message.reasoning == ""


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_named(size: int) -> None:
    message = parse(NamedCallParser("f"), '{"x": "<tool_call>"}', size)
    assert [(c.name, c.arguments) for c in message.calls] == [("f", '{"x": "<tool_call>"}')]
    assert message.content == ""


@pytest.mark.parametrize("parser", [required_calls_parser(TOOLS), NamedCallParser("f")])
def test_nothing_was_written(parser: OutputParser) -> None:
    assert parse(parser, "", 1) == ParsedMessage()
