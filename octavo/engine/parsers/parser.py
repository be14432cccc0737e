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
    prefill: str = "",
    may_imply: bool = True,
    only_first: bool = False,
) -> OutputParser:
    """The parser of one answer.

    Args:
        tool_format, reasoning_format: names of the tables in `formats`; None: not looked for.
        tools: the request's tools, in OpenAI's shape. Without any, calls are not looked for.
        prompt: the prompt's text, or its end.
        prefill: the answer's own beginning, where the prompt has it.
        may_imply: as of `ReasoningFormat.begins`.
        only_first: reasoning comes first, or not at all (a grammar binds what is behind it).
    """
    functions = functions_of(tools)
    if HARMONY in (tool_format, reasoning_format):
        return HarmonyParser(functions)
    return MarkedParser(
        TOOL_FORMATS[tool_format] if tool_format and functions else None,
        REASONING_FORMATS[reasoning_format] if reasoning_format else None,
        functions,
        prompt,
        prefill,
        may_imply=may_imply,
        only_first=only_first,
    )


class MarkedParser:
    """Answers in which markers set reasoning and calls apart.

    White space around markers is the template's, not the answer's: it is told only where it stands
    between two stretches of content, or of reasoning.
    """

    def __init__(
        self,
        tool_format: ToolFormat | None,
        reasoning_format: ReasoningFormat | None,
        functions: Mapping[str, Mapping[str, Any]],
        prompt: str = "",
        prefill: str = "",
        *,
        may_imply: bool = True,
        only_first: bool = False,
    ) -> None:
        self._sections = dict(tool_format.sections) if tool_format else {}
        self._bare = self._sections.pop("", None)
        self._reasoning = reasoning_format
        self._opening_marks = list(reasoning_format.open) if reasoning_format else []
        self._only_first = only_first
        self._functions = functions
        self._buffer = ""
        self._held = ""  # white space that is told with the text behind it
        self._lead = ""  # white space behind the last marker
        self._gap = {True: "", False: ""}  # that at the end of reasoning, and of content
        self._has_told = {True: False, False: False}  # reasoning; content
        self._is_reasoning = reasoning_format is not None and reasoning_format.begins(
            prompt, prefill, may_imply=may_imply
        )
        self._after_marker = self._is_reasoning and not prefill
        # Models open again what the prompt has opened.
        self._awaits_mark = self._after_marker or (only_first and not self._is_reasoning)
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
        if self._awaits_mark and not self._take_first_mark():
            return False
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

    def _take_first_mark(self) -> bool:
        """Take the mark that opens reasoning from the beginning, if it is there; False where more
        is needed to tell whether it is."""
        text = self._buffer.lstrip()
        mark = next((m for m in self._opening_marks if text.startswith(m)), "")
        if not mark and any(m.startswith(text) for m in self._opening_marks):
            return False
        self._awaits_mark = False
        if mark:
            self._buffer = text[len(mark) :]
            self._is_reasoning = self._after_marker = True
        if self._only_first:
            self._opening_marks = []
        return True

    def _markers(self) -> list[str]:
        if self._is_reasoning and self._reasoning:
            return list(self._reasoning.close)
        return [*self._opening_marks, *self._sections]

    def _pass(self, marker: str) -> None:
        """A marker stood here."""
        if self._reasoning and marker in (*self._reasoning.open, *self._reasoning.close):
            self._leave()
            self._after_marker = True
            self._is_reasoning = marker in self._reasoning.open
        else:
            self._opening = marker

    def _leave(self) -> None:
        """A stretch of text is over: keep the white space at its end."""
        self._gap[self._is_reasoning] += self._held
        self._held = self._lead = ""

    def _tell(self, text: str, events: list[Event]) -> None:
        """Tell text, but for the white space at its end, which a marker may follow."""
        if self._after_marker:
            behind = text.lstrip()
            self._lead += text[: len(text) - len(behind)]
            if not behind:
                return
            if self._has_told[self._is_reasoning]:
                self._held = self._gap[self._is_reasoning] or self._lead
            self._gap[self._is_reasoning] = ""
            self._after_marker = False
            text = behind
        if not text:
            return
        text = self._held + text
        told = text.rstrip()
        self._held = text[len(told) :]
        if told:
            self._say(self._event(told), events)
            if not self._is_reasoning:
                self._bare = None  # an answer that began with text is text

    def _say(self, event: Event, events: list[Event]) -> None:
        events.append(event)
        if isinstance(event, (Content, Reasoning)):
            self._has_told[isinstance(event, Reasoning)] = True

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
            self._say(Content(self._held + marker), events)
            self._after_marker, self._held = False, ""
        else:
            self._section = section_of(
                SectionStart(
                    opening=self._held + marker,
                    index=self._num_calls,
                    names=None if marker else self._functions.keys(),
                    parameters=self._functions,
                )
            )
        return True

    @staticmethod
    def _choose(ways: Mapping[str, SectionOf], text: str) -> SectionOf | None:
        """The section that begins with this text's first character, white space apart."""
        return ways.get(text.lstrip()[0]) or ways.get("")

    def _in_section(self, section: Section, events: list[Event]) -> bool:
        """Give the section its text; False where it goes on."""
        for event in section.feed(self._buffer):
            self._say(event, events)
        self._buffer = section.rest or ""
        if section.rest is None:
            return False
        has_calls = section.index > self._num_calls
        if has_calls:
            self._leave()
        # White space behind what was none of the calls is content's own.
        ends_with_content = bool(events) and isinstance(events[-1], Content) and events[-1].text
        self._after_marker = has_calls and not ends_with_content
        self._held = ""
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
