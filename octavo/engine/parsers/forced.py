"""Parsers of answers that a grammar has made to be calls (`tool_choice` required, or a name)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from octavo.contracts.answer_events import CallArguments, CallBegin, Event
from octavo.engine.parsers.formats import ToolFormat
from octavo.engine.parsers.json_calls import JsonCalls
from octavo.engine.parsers.parser import MarkedParser, functions_of

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
