"""Answers and what is in them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from octavo.contracts.answer_events import ParsedMessage
from octavo.engine.parsers.parser import make_parser

TOOLS: list[dict[str, object]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
    for name in ("get_weather", "get_time")
]


@dataclass
class Case:
    """An answer and what is in it."""

    tool_format: str | None
    text: str
    calls: list[tuple[str, object]] = field(default_factory=list)
    content: str = ""
    reasoning: str = ""
    reasoning_format: str | None = None
    prompt: str = ""
    tools: list[dict[str, object]] | None = None
    prefill: str = ""


def parse(case: Case, pieces: list[str]) -> ParsedMessage:
    parser = make_parser(
        tool_format=case.tool_format,
        reasoning_format=case.reasoning_format,
        tools=TOOLS if case.tools is None else case.tools,
        prompt=case.prompt,
        prefill=case.prefill,
    )
    message = ParsedMessage()
    for piece in pieces:
        message.add(parser.feed(piece))
    return message.add(parser.finish())


def check(case: Case) -> None:
    """The answer says what is in it, whole, character by character, and in two pieces."""
    whole = parse(case, [case.text])
    assert [(c.name, json.loads(c.arguments)) for c in whole.calls] == case.calls
    assert (whole.content, whole.reasoning) == (case.content, case.reasoning)
    assert parse(case, list(case.text)) == whole
    for at in range(len(case.text)):
        assert parse(case, [case.text[:at], case.text[at:]]) == whole, case.text[:at]
