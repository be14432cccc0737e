"""JSON followed as it comes, a piece at a time, without building it.

Models write some things into JSON that it does not have, and that have one meaning only. They are
made right on the way: line feeds and other control characters within strings, backslashes that
escape nothing, a comma behind the last element.
"""

from __future__ import annotations

import json
from collections.abc import Callable

WHITESPACE = " \t\r\n"
CLOSER = {"{": "}", "[": "]"}
_ESCAPES = '"\\/bfnrtu'
"""What may stand behind a backslash."""
_CONTROL = {chr(code): json.dumps(chr(code))[1:-1] for code in range(0x20)}


class JsonError(ValueError):
    """The text is not JSON, whatever may follow."""


class _String:
    """A string behind its opening quote."""

    def __init__(self) -> None:
        self.is_open = True
        self._escaped = False

    def feed(self, char: str) -> str:
        """Take one character; returns what is certain of the string's JSON."""
        if self._escaped:
            self._escaped = False
            if char in _ESCAPES:
                return "\\" + char
            return char if char == "'" else _CONTROL.get(char, "\\\\" + char)
        if char == "\\":
            self._escaped = True
            return ""
        if char == '"':
            self.is_open = False
        return _CONTROL.get(char, char)


class JsonContainer:
    """Says where an object or array ends. Quotes and brackets are checked, scalars are not."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._string: _String | None = None
        self._comma = ""  # a comma and white space behind it, while an end may follow

    @property
    def is_open(self) -> bool:
        """Has it begun and not ended?"""
        return bool(self._closers)

    def feed(self, char: str) -> str:
        """Take one character; returns what is certain of the container's JSON.

        Raises:
            JsonError: a bracket that does not fit.
        """
        if self._string is not None:
            told = self._string.feed(char)
            if not self._string.is_open:
                self._string = None
            return told
        if char in WHITESPACE and self._comma:
            self._comma += char
            return ""
        before, self._comma = self._comma, ""
        if char == ",":
            self._comma = char
            return before
        if char == '"':
            self._string = _String()
        elif char in CLOSER:
            self._closers.append(CLOSER[char])
        elif char in "}]":
            if not self._closers or self._closers.pop() != char:
                raise JsonError(char)
            before = before[1:]
        return before + char


class JsonObject:
    """One JSON object, its values told while they come.

    After each `feed`, `pieces` has (key, text) for every piece of a value at the top level, in
    order, and (key, None) where that value has ended. Keys are as written, without their quotes.

    Attributes:
        done: the object has ended.
        failed: the next character can not stand there.
    """

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self.pieces: list[tuple[str, str | None]] = []
        self._state: Callable[[str], None] = self._start
        self._key = ""
        self._string = _String()
        self._value = JsonContainer()

    def feed(self, text: str) -> int:
        """Take characters up to the end of a value or of the object; returns how many."""
        self.pieces = []
        for count, char in enumerate(text):
            try:
                self._state(char)
            except JsonError:
                self.failed = True
                return count
            if self.done or (self.pieces and self.pieces[-1][1] is None):
                return count + 1
        return len(text)

    def _say(self, text: str) -> None:
        if self.pieces and self.pieces[-1][0] == self._key and self.pieces[-1][1] is not None:
            self.pieces[-1] = (self._key, self.pieces[-1][1] + text)
        elif text:
            self.pieces.append((self._key, text))

    def _start(self, char: str) -> None:
        if char != "{":
            raise JsonError(char)
        self._state = self._before_key

    def _before_key(self, char: str) -> None:
        if char == "}":
            self.done = True
        elif char == '"':
            self._key, self._string, self._state = "", _String(), self._in_key
        elif char not in WHITESPACE:
            raise JsonError(char)

    def _in_key(self, char: str) -> None:
        told = self._string.feed(char)
        if self._string.is_open:
            self._key += told
        else:
            self._state = self._after_key

    def _after_key(self, char: str) -> None:
        if char == ":":
            self._state = self._before_value
        elif char not in WHITESPACE:
            raise JsonError(char)

    def _before_value(self, char: str) -> None:
        if char in WHITESPACE:
            return
        if char in ",:}]":
            raise JsonError(char)
        self._say(char)
        if char in CLOSER:
            self._value.feed(char)
            self._state = self._in_container
        elif char == '"':
            self._string, self._state = _String(), self._in_string
        else:
            self._state = self._in_scalar

    def _in_container(self, char: str) -> None:
        self._say(self._value.feed(char))
        if not self._value.is_open:
            self._end_value()

    def _in_string(self, char: str) -> None:
        self._say(self._string.feed(char))
        if not self._string.is_open:
            self._end_value()

    def _in_scalar(self, char: str) -> None:
        if char in ",}" or char in WHITESPACE:
            self._end_value()
            self._after_value(char)
        elif char in '{}[]":':
            raise JsonError(char)
        else:
            self._say(char)

    def _end_value(self) -> None:
        self.pieces.append((self._key, None))
        self._state = self._after_value

    def _after_value(self, char: str) -> None:
        if char == ",":
            self._state = self._before_key
        elif char == "}":
            self.done = True
        elif char not in WHITESPACE:
            raise JsonError(char)
