"""Sections of tool calls, one class per way of writing them.

A section takes the text behind its opening marker and says what is in it, until it is over. What
turns out not to be a call is content: nothing that the model wrote is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo.contracts.answer_events import CallArguments, CallBegin, Content, Event
from octavo.engine.parsers.json_scanner import WHITESPACE, JsonContainer, JsonError, JsonObject
from octavo.engine.parsers.pythonic import CallScanner, PythonicError, parse_call

MAX_NAME_CHARS = 256
"""Longest function name, four times OpenAI's limit: more is not a name."""
CHUNK_CHARS = 256
"""Most text that joins a buffer at once: taking a character from the front copies the rest."""
_NAME = re.compile(r"[\w.:/-]+")


@dataclass(frozen=True, kw_only=True)
class SectionStart:
    """What a section is told when it begins.

    Attributes:
        opening: the marker in front, given back as content where no call follows.
        index: number of the section's first call.
        names: only these are calls; None takes any name. For sections that no marker announces.
        parameters: JSON schema of the parameters, by function.
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
        if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
            return False
        if self.start.names is not None and name not in self.start.names:
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


class JsonCalls(BufferedSection):
    """`{"name": …, "arguments": {…}}`, alone, in a list, or several one after another.

    Args:
        close: the marker behind the section; without it, a section ends where no call can follow.
        separators: characters between calls that are not in a list.
    """

    def __init__(self, start: SectionStart, *, close: str = "", separators: str = "") -> None:
        super().__init__(start)
        self._close = [close] if close else []
        self._outside = WHITESPACE + "[" + separators
        self._in_list = False
        self._call = _CallObject()

    def between(self) -> bool:
        char = self.buffer[0]
        if char in (WHITESPACE + ",]" if self._in_list else self._outside):
            self.take(1)
            if char in "[]":
                self._in_list = char == "["
        elif char == "{":
            if self.index > self.start.index:
                self._raw = ""
            self._call = _CallObject()
            self.state = self._in_call
        else:
            closed = self.marker(self._close)
            return closed is not None and self.over()
        return True

    def _in_call(self) -> bool:
        call = self._call
        self.take(call.feed(self.buffer))
        if not self._begun and call.name is not None and not self.begin_call(call.name):
            return self.reject()
        if self._begun:
            self.say_arguments(call.arguments(broken_off=call.failed))
        if call.failed or (call.done and not self._begun):
            return (self.end_call() and self.over()) if self._begun else self.reject()
        return self.end_call() if call.done else True

    def finish(self) -> list[Event]:
        if self._begun:
            self.say_arguments(self._call.arguments(broken_off=True))
        return super().finish()


class _CallObject:
    """Name and arguments of one call's JSON object, while it comes.

    Attributes:
        name: None until it is known.
        done, failed: as of `JsonObject`; a name that is not a string fails too.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.failed = False
        self._object = JsonObject()
        self._name_text = ""
        self._key: str | None = None  # the key that holds the arguments
        self._held = ""
        self._quoted = False  # the arguments are JSON text within a JSON string
        self._ended = False

    @property
    def done(self) -> bool:
        return self._object.done

    def feed(self, text: str) -> int:
        """Take what `JsonObject.feed` takes; returns how many characters."""
        count = self._object.feed(text)
        for key, piece in self._object.pieces:
            if key == "name" and self.name is None:
                self._take_name(piece)
            elif key in ("arguments", "parameters"):
                self._take_arguments(key, piece)
        self.failed = self.failed or self._object.failed
        return count

    def arguments(self, *, broken_off: bool = False) -> str:
        """The arguments' text that may be told now, once. Where they are JSON text within a string,
        that is all of it at its end; where they do not come, `{}`."""
        if self._quoted and not self._ended and not broken_off:
            return ""
        text, self._held = self._held, ""
        if self._quoted and text:
            inner = _json_or_none(text)
            return inner if isinstance(inner, str) else text
        return "{}" if self.done and self._key is None else text

    def _take_name(self, piece: str | None) -> None:
        if piece is not None:
            self._name_text += piece
            return
        name = _json_or_none(self._name_text)
        self.failed = not isinstance(name, str)
        self.name = name if isinstance(name, str) else None

    def _take_arguments(self, key: str, piece: str | None) -> None:
        if self._ended:
            return  # the first ones count
        if self._key is None:
            self._key, self._quoted = key, (piece or "").startswith('"')
        self._ended = piece is None
        self._held += piece or ""


class NamedCalls(BufferedSection):
    """A function's name, a separator, and the arguments as a JSON object.

    Args:
        begin: the marker in front of each call; "": the section is one call, its name comes first.
        separator: the marker between name and arguments; a `{` is the arguments' own.
        name: what stands in front of the separator; its group 1 is the function.
        ignored: markers that may stand behind a call.
        close: the marker behind the section, if it has one.
    """

    def __init__(
        self,
        start: SectionStart,
        *,
        separator: str,
        begin: str = "",
        name: str = "(.+)",
        ignored: tuple[str, ...] = (),
        close: str = "",
    ) -> None:
        super().__init__(start)
        self._begin, self._separator, self._close = begin, separator, close
        self._name = re.compile(name, re.DOTALL)
        self._markers = [m for m in (begin, *ignored, close) if m]
        self._arguments = JsonContainer()
        if not begin:
            self.state = self._in_name

    def between(self) -> bool:
        if self.buffer[0] in WHITESPACE:
            self.take(1)
            return True
        marker = self.marker(self._markers)
        if marker is None:
            return False
        if not marker or marker == self._close:
            return self.over()
        if marker == self._begin:
            self.state = self._in_name
        return True

    def _in_name(self) -> bool:
        end = self.buffer.find(self._separator)
        if end < 0 and len(self.buffer) < MAX_NAME_CHARS + len(self._separator):
            return False
        found = self._name.fullmatch(self.buffer[:end].strip()) if end >= 0 else None
        if found is None or end > MAX_NAME_CHARS or not self.begin_call(found[1]):
            return self.reject()
        self.take(end + (0 if self._separator == "{" else len(self._separator)))
        self._arguments = JsonContainer()
        self.state = self._in_arguments
        return True

    def _in_arguments(self) -> bool:
        container = self._arguments
        if not container.is_open:
            if self.buffer[0] in WHITESPACE:
                self.take(1)
                return True
            if self.buffer[0] != "{":
                self.say_arguments("{}")
                return self.end_call()
        for count, char in enumerate(self.buffer, start=1):
            try:
                container.feed(char)
            except JsonError:
                self.say_arguments(self.take(count - 1))
                return self.end_call()
            if not container.is_open:
                self.say_arguments(self.take(count))
                return self.end_call()
        self.say_arguments(self.take(len(self.buffer)))
        return False


class PythonicCalls(BufferedSection):
    """A list of calls in Python's syntax: `[get_weather(city="Paris"), get_time()]`. A call is told
    when it is complete."""

    def __init__(self, start: SectionStart, *, close: str = "") -> None:
        super().__init__(start)
        self._close = [close] if close else []
        self._in_list = False
        self._ended = False
        self._call = ""
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
            self._call, self._scanner = "", CallScanner()
            self.state = self._in_call
        else:
            closed = self.marker(self._close)
            return closed is not None and self.over()
        return True

    def _in_call(self) -> bool:
        complete = False
        count = 0
        try:
            while not complete and count < len(self.buffer):
                complete = self._scanner.feed(self.buffer[count])
                count += 1
            self._call += self.take(count)
            if not complete:
                return False
            name, arguments = parse_call(self._call)
        except PythonicError:
            return self.reject()
        if not self.begin_call(name):
            return self.reject()
        self.say_arguments(arguments)
        return self.end_call()


class TaggedCalls(BufferedSection):
    """`<function=NAME><parameter=KEY>VALUE</parameter>…</function>`: values are plain text, of the
    types that the function's schema has. A parameter is told when it is complete."""

    def __init__(self, start: SectionStart, *, close: str) -> None:
        super().__init__(start)
        self._close = close
        self._function = ""
        self._num_parameters = 0

    def between(self) -> bool:
        if self.buffer[0] in WHITESPACE:
            self.take(1)
            return True
        marker = self.marker(("<function=", self._close))
        if marker is None:
            return False
        if marker != "<function=":
            return self.over()
        self.state = self._in_name
        return True

    def _in_name(self) -> bool:
        end = self.buffer.find(">")
        if end < 0 and len(self.buffer) <= MAX_NAME_CHARS:
            return False
        if not 0 <= end <= MAX_NAME_CHARS or not self.begin_call(self.buffer[:end].strip()):
            return self.reject()
        self._function = self.take(end + 1)[:-1].strip()
        self._num_parameters = 0
        self.state = self._in_function
        return True

    def _in_function(self) -> bool:
        if self.buffer[0] in WHITESPACE:
            self.take(1)
            return True
        if self.buffer.startswith("<parameter="):
            return self._in_parameter()
        marker = self.marker(("</function>", "<parameter="))
        if marker is None:
            return False
        self.say_arguments("}" if self._num_parameters else "{}")
        return self.end_call()

    def _in_parameter(self) -> bool:
        end = self.buffer.find("</parameter>")
        if end < 0:
            return False
        key, _, value = self.take(end + len("</parameter>"))[: -len("</parameter>")].partition(">")
        key = key[len("<parameter=") :].strip()
        value = value[value.startswith("\n") : len(value) - value.endswith("\n")]
        typed = json.dumps({key: self._typed(key, value)}, ensure_ascii=False)
        self.say_arguments((", " if self._num_parameters else "{") + typed[1:-1])
        self._num_parameters += 1
        return True

    def _typed(self, key: str, value: str) -> Any:
        """The value as its schema has it; what the schema does not fit stays text."""
        properties = self.start.parameters.get(self._function, {}).get("properties", {})
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        kind = schema.get("type", "string") if isinstance(schema, Mapping) else "string"
        if kind == "string":
            return value
        parsed = _json_or_none(value)
        return value if parsed is None and value.strip() != "null" else parsed


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
