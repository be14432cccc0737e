"""Parsers of answers that a grammar has made to be calls (`tool_choice` required, or a name), with
reasoning in front of them or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from octavo.contracts.answer_events import CallArguments, CallBegin, Content, Event, joined
from octavo.engine.parsers.formats import ToolFormat
from octavo.engine.parsers.json_calls import JsonCalls
from octavo.engine.parsers.parser import MarkedParser, OutputParser, functions_of

_LIST_OF_CALLS = ToolFormat(sections={"": {"[": JsonCalls}})


def required_calls_parser(tools: Iterable[Mapping[str, Any]]) -> MarkedParser:
    """The parser of `[{"name": …, "parameters": {…}}, …]`, where only names of `tools` come."""
    return MarkedParser(_LIST_OF_CALLS, None, functions_of(tools))


class NamedCallParser:
    """The parser of an answer that is the arguments of one call to a function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def feed(self, text: str) -> list[Event]:
        if not text:
            return []
        begin: list[Event] = [] if self._begun else [CallBegin(0, self._name)]
        self._begun = True
        return [*begin, CallArguments(0, text)]

    def finish(self) -> list[Event]:
        return []


class BehindReasoning:
    """Two parsers: what is content to the first one is the second one's answer."""

    def __init__(self, reasoning: OutputParser, behind: OutputParser) -> None:
        self._reasoning, self._behind = reasoning, behind

    def feed(self, text: str) -> list[Event]:
        return self._passed_on(self._reasoning.feed(text))

    def finish(self) -> list[Event]:
        return joined([*self._passed_on(self._reasoning.finish()), *self._behind.finish()])

    def _passed_on(self, events: Iterable[Event]) -> list[Event]:
        told: list[Event] = []
        for event in events:
            told += self._behind.feed(event.text) if isinstance(event, Content) else [event]
        return told
