"""The parser of an answer: text in, piece by piece; reasoning, content and calls out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from octavo.contracts.answer_events import Content, Event, Reasoning, joined
from octavo.engine.parsers.formats import (
    HARMONY,
    REASONING_FORMATS,
    TOOL_FORMATS,
    ReasoningFormat,
    SectionOf,
    ToolFormat,
)
from octavo.engine.parsers.harmony import HarmonyParser
from octavo.engine.parsers.markers import first_marker, num_uncertain
from octavo.engine.parsers.sections import Section, SectionStart


class OutputParser(Protocol):
    """Takes one answer apart. However the text is cut, the events add up to the same message."""

    def feed(self, text: str) -> list[Event]:
        """Take the next piece of the answer; what is certain is told at once."""

    def finish(self) -> list[Event]:
        """The answer is over: tell what was withheld."""


def make_parser(
    *,
    tool_format: str | None,
    reasoning_format: str | None,
    tools: Iterable[Mapping[str, Any]] = (),
    prompt: str = "",
) -> OutputParser:
    """The parser of one answer.

    Args:
        tool_format, reasoning_format: names of the tables in `formats`; None: not looked for.
        tools: the request's tools, in OpenAI's shape. Without any, calls are not looked for.
        prompt: the prompt's text, or its end.
    """
    if HARMONY in (tool_format, reasoning_format):
        return HarmonyParser()
    functions = functions_of(tools)
    return MarkedParser(
        TOOL_FORMATS[tool_format] if tool_format and functions else None,
        REASONING_FORMATS[reasoning_format] if reasoning_format else None,
        functions,
        prompt,
    )


class MarkedParser:
    """Answers in which markers set reasoning and calls apart.

    White space around markers is not told: it is the template's, not the answer's.
    """

    def __init__(
        self,
        tool_format: ToolFormat | None,
        reasoning_format: ReasoningFormat | None,
        functions: Mapping[str, Mapping[str, Any]],
        prompt: str = "",
    ) -> None:
        self._sections = dict(tool_format.sections) if tool_format else {}
        self._bare = self._sections.pop("", None)
        self._reasoning = reasoning_format
        self._functions = functions
        self._buffer = ""
        self._held = ""  # white space that is told with the text behind it
        self._after_marker = False
        self._is_reasoning = bool(
            reasoning_format and prompt.rstrip().endswith(reasoning_format.open)
        )
        self._opening: str | None = None  # a section's marker; its first character is awaited
        self._section: Section | None = None
        self._num_calls = 0

    def feed(self, text: str) -> list[Event]:
        self._buffer += text
        events: list[Event] = []
        while self._buffer:
            if self._section is not None:
                if not self._in_section(self._section, events):
                    break
            elif self._opening is not None:
                if not self._open(self._opening, events):
                    break
            elif not self._in_text(events):
                break
        return joined(events)

    def finish(self) -> list[Event]:
        events: list[Event] = []
        if self._section is not None:
            events += self._section.finish()
        else:
            self._held += (self._opening or "") + self._buffer
            self._opening, self._buffer = None, ""
            if self._held and not (self._after_marker and self._held.isspace()):
                events.append(self._event(self._held))
        return joined(events)

    def _event(self, text: str) -> Event:
        return Reasoning(text) if self._is_reasoning else Content(text)

    # ------------------------------------------------------------------ text

    def _in_text(self, events: list[Event]) -> bool:
        """Tell text up to a marker; False where more is needed."""
        if self._bare is not None and not self._is_reasoning:
            if self._buffer.isspace():
                return False
            if self._choose(self._bare, self._buffer) is not None:
                self._opening = ""
                return True
        markers = self._markers()
        at, marker = first_marker(self._buffer, markers)
        if marker:
            self._tell(self._buffer[:at], events)
            self._buffer = self._buffer[at + len(marker) :]
            self._pass(marker)
            return True
        certain = len(self._buffer) - num_uncertain(self._buffer, markers)
        self._tell(self._buffer[:certain], events)
        self._buffer = self._buffer[certain:]
        return False

    def _markers(self) -> list[str]:
        if self._is_reasoning and self._reasoning:
            return [self._reasoning.close]
        opening = [self._reasoning.open] if self._reasoning else []
        return opening + list(self._sections)

    def _pass(self, marker: str) -> None:
        """A marker stood here."""
        if self._reasoning and marker in (self._reasoning.open, self._reasoning.close):
            self._is_reasoning = marker == self._reasoning.open
            self._held, self._after_marker = "", True
        else:
            self._opening = marker

    def _tell(self, text: str, events: list[Event]) -> None:
        """Tell text, but for the white space at its end, which a marker may follow."""
        if self._after_marker:
            text = text.lstrip()
        if not text:
            return
        text = self._held + text
        told = text.rstrip()
        self._held = text[len(told) :]
        if told:
            self._after_marker = False
            events.append(self._event(told))
            if not self._is_reasoning:
                self._bare = None  # an answer that began with text is text

    # ------------------------------------------------------------------ calls

    def _open(self, marker: str, events: list[Event]) -> bool:
        """Begin the section behind a marker; False where its first character is still to come."""
        if self._buffer.isspace():
            return False
        ways = self._sections[marker] if marker else self._bare or {}
        section_of = self._choose(ways, self._buffer)
        self._opening = None
        self._bare = None
        if section_of is None:
            events.append(Content(self._held + marker))
            self._after_marker = False
        else:
            self._section = section_of(
                SectionStart(
                    opening=self._held + marker,
                    index=self._num_calls,
                    names=None if marker else self._functions.keys(),
                    parameters=self._functions,
                )
            )
        self._held = ""
        return True

    @staticmethod
    def _choose(ways: Mapping[str, SectionOf], text: str) -> SectionOf | None:
        """The section that begins with this text's first character, white space apart."""
        return ways.get(text.lstrip()[0]) or ways.get("")

    def _in_section(self, section: Section, events: list[Event]) -> bool:
        """Give the section its text; False where it goes on."""
        told = section.feed(self._buffer)
        self._buffer = section.rest or ""
        events += told
        if section.rest is None:
            return False
        ends_with_content = bool(told) and isinstance(told[-1], Content) and told[-1].text != ""
        self._after_marker = section.index > self._num_calls and not ends_with_content
        self._num_calls = section.index
        self._section = None
        return True


def functions_of(tools: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Schema of the parameters by function's name."""
    functions: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            functions[function["name"]] = parameters if isinstance(parameters, Mapping) else {}
    return functions
