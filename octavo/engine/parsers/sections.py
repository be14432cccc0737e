"""Sections of tool calls, one class per way of writing them: here, in `json_calls` and in
`tagged_calls`.

A section takes the text behind its opening marker and says what is in it, until it is over. What
turns out not to be a call is content: nothing that the model wrote is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo.contracts.answer_events import CallArguments, CallBegin, Content, Event
from octavo.engine.parsers.json_scanner import WHITESPACE
from octavo.engine.parsers.pythonic import CallScanner, PythonicError

MAX_NAME_CHARS = 256
"""Longest name of a function, four times OpenAI's limit."""
CHUNK_CHARS = 256
"""Most text that joins a buffer at once: taking a character from the front copies the rest."""
_NAME = re.compile(r"[\w.:/-]+")


def is_name(text: str) -> bool:
    """Whether this may be the name of a function that the request has not."""
    return len(text) <= MAX_NAME_CHARS and _NAME.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True)
class SectionStart:
    """What a section is told when it begins.

    Attributes:
        opening: the marker in front, given back as content where no call follows.
        index: number of the section's first call.
        names: only these are calls; None takes any name. For sections that no marker announces.
        parameters: JSON schema of the parameters, by function of the request.
    """

    opening: str = ""
    index: int = 0
    names: Collection[str] | None = None
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Section(Protocol):
    """One stretch of calls.

    Attributes:
        index: number that the next call would have.
        rest: None while the section goes on; then the text behind it, which is not its own.
    """

    index: int
    rest: str | None

    def feed(self, text: str) -> list[Event]:
        """Take the next piece of text, at most to the section's end."""

    def finish(self) -> list[Event]:
        """The text is over."""


class BufferedSection:
    """A section as a loop of states over a buffer.

    A state takes from the front of `buffer`, with `take`, and returns False where it needs more
    text. What it does may depend on the text only, not on where the text was cut.
    """

    def __init__(self, start: SectionStart) -> None:
        self.index = start.index
        self.rest: str | None = None
        self.buffer = ""
        self.start = start
        self.state: Callable[[], bool] = self.between
        self._events: list[Event] = []
        self._begun = False  # a call has begun and not ended
        self._raw = start.opening  # outside of calls: what has been taken since the last one

    def between(self) -> bool:
        """The state in front of, between and behind calls."""
        raise NotImplementedError

    def feed(self, text: str) -> list[Event]:
        for at in range(0, len(text), CHUNK_CHARS):
            self.buffer += text[at : at + CHUNK_CHARS]
            while self.rest is None and self.buffer and self.state():
                pass
            if self.rest is not None:
                self.rest += text[at + CHUNK_CHARS :]
                break
        return self._told()

    def finish(self) -> list[Event]:
        unheard = self.index == self.start.index or self.state != self.between
        if unheard and not self._begun:
            self._events.append(Content(self._raw + self.buffer))
        return self._told()

    def _told(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def take(self, count: int) -> str:
        """The next characters of the buffer, removed from it."""
        text, self.buffer = self.buffer[:count], self.buffer[count:]
        if not self._begun:
            self._raw += text
        return text

    def begin_call(self, name: str) -> bool:
        """Say that a call begins. False: this is no function's name, or not one of `names`."""
        if self.start.names is not None and name not in self.start.names:
            return False
        if name not in self.start.parameters and not is_name(name):
            return False
        self._events.append(CallBegin(self.index, name))
        self._begun, self._raw = True, ""
        return True

    def say_arguments(self, text: str) -> None:
        """More of the arguments of the call that has begun."""
        if text:
            self._events.append(CallArguments(self.index, text))

    def end_call(self) -> bool:
        """The call that has begun is complete."""
        self._begun = False
        self.index += 1
        self.state = self.between
        return True

    def over(self) -> bool:
        """The section is over. Without a call in it, it is content."""
        return self._end() if self.index > self.start.index else self.reject()

    def reject(self) -> bool:
        """What has been taken since the last call is none: content, and the section is over."""
        self._events.append(Content(self._raw))
        return self._end()

    def _end(self) -> bool:
        self.rest, self.buffer = self.buffer, ""
        return True

    def marker(self, markers: Iterable[str]) -> str | None:
        """Which marker the buffer begins with: taken from it, and returned. "" is none of them;
        None is unknown until more text comes."""
        for marker in markers:
            if self.buffer.startswith(marker):
                return self.take(len(marker))
        return None if any(m.startswith(self.buffer) for m in markers) else ""


class PythonicCalls(BufferedSection):
    """A list of calls in Python's syntax: `[get_weather(city="Paris"), get_time()]`. A call is told
    when it is complete."""

    def __init__(self, start: SectionStart, *, close: str = "") -> None:
        super().__init__(start)
        self._close = [close] if close else []
        self._in_list = False
        self._ended = False
        self._scanner = CallScanner()

    def between(self) -> bool:
        char = self.buffer[0]
        if char in WHITESPACE or (char == "," and self._in_list and self.index > self.start.index):
            self.take(1)
        elif char == "[" and not self._in_list and not self._ended:
            self.take(1)
            self._in_list = True
        elif char == "]" and self._in_list:
            self.take(1)
            self._in_list, self._ended = False, True
        elif self._in_list:
            if self.index > self.start.index:
                self._raw = ""
            self._scanner = CallScanner()
            self.state = self._in_call
        else:
            closed = self.marker(self._close)
            return closed is not None and self.over()
        return True

    def _in_call(self) -> bool:
        try:
            while not self._scanner.feed(self.buffer[0]):
                self.take(1)
                if not self.buffer:
                    return False
            self.take(1)
            name, arguments = self._scanner.call()
        except PythonicError:
            return self.reject()
        if not self.begin_call(name):
            return self.reject()
        self.say_arguments(arguments)
        return self.end_call()
