"""What a parser of answers says, and the message that it adds up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True)
class CallBegin:
    """A tool call begins; calls are counted from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Event: TypeAlias = "Content | Reasoning | CallBegin | CallArguments"


@dataclass
class ParsedCall:
    """One tool call. `arguments` is JSON text as the model wrote it; where the model broke off or
    erred, it need not be valid."""

    name: str
    arguments: str = ""


@dataclass
class ParsedMessage:
    """All events of an answer, added up. What the model did not write is ""."""

    content: str = ""
    reasoning: str = ""
    calls: list[ParsedCall] = field(default_factory=list)

    def add(self, events: Iterable[Event]) -> ParsedMessage:
        """Take in more events, in their order; returns itself."""
        for event in events:
            if isinstance(event, Content):
                self.content += event.text
            elif isinstance(event, Reasoning):
                self.reasoning += event.text
            elif isinstance(event, CallBegin):
                self.calls.append(ParsedCall(event.name))
            else:
                self.calls[event.index].arguments += event.text
        return self


def joined(events: Iterable[Event]) -> list[Event]:
    """The events, pieces of one text put together."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Content) and isinstance(last, Content):
            result[-1] = Content(last.text + event.text)
        elif isinstance(event, Reasoning) and isinstance(last, Reasoning):
            result[-1] = Reasoning(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            # Between arguments of two calls, a CallBegin stands.
            result[-1] = CallArguments(event.index, last.text + event.text)
        else:
            result.append(event)
    return result
