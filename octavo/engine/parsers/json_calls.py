"""Sections whose calls have their arguments as JSON."""

from __future__ import annotations

import json
import re
from typing import Any

from octavo.contracts.answer_events import Event
from octavo.engine.parsers.json_scanner import WHITESPACE, JsonContainer, JsonError, JsonObject
from octavo.engine.parsers.sections import MAX_NAME_CHARS, BufferedSection, SectionStart


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
        elif char in "}]" and self.index > self.start.index:
            self.take(1)  # one too many, behind a call
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
        self._is_scalar = False  # the arguments are no object or list; perhaps that within a string
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
        """The arguments' text that may be told now, once: of an object or a list as it comes, of
        anything else at its end. Where they do not come, or as null or as no text, `{}`."""
        if self._is_scalar and not self._ended and not broken_off:
            return ""
        text, self._held = self._held, ""
        if self._is_scalar and text:
            return _arguments_of(text)
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
            self._key, self._is_scalar = key, not (piece or "").startswith(("{", "["))
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
        told = []
        count = 0
        for char in self.buffer:
            try:
                told.append(container.feed(char))
            except JsonError:
                break
            count += 1
            if not container.is_open:
                break
        is_over = count < len(self.buffer) or not container.is_open
        self.take(count)
        self.say_arguments("".join(told))
        return is_over and self.end_call()


def _arguments_of(text: str) -> str:
    """Arguments that a model wrote as no object, as JSON: text that looks like an object is one."""
    value = _json_or_none(text)
    if value is None or value == "":
        return "{}" if value == "" or text == "null" else text
    return value if isinstance(value, str) and value.lstrip().startswith(("{", "[")) else text


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
