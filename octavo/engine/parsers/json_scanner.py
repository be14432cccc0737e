"""JSON followed as it comes, a piece at a time, without building it."""

from __future__ import annotations

from collections.abc import Callable

WHITESPACE = " \t\r\n"
CLOSER = {"{": "}", "[": "]"}


class JsonError(ValueError):
    """The text is not JSON, whatever may follow."""


class JsonContainer:
    """Says where an object or array ends. Quotes and brackets are checked, scalars are not."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._in_string = False
        self._escaped = False

    @property
    def is_open(self) -> bool:
        """Has it begun and not ended?"""
        return bool(self._closers)

    def feed(self, char: str) -> None:
        """Take one character. Raises JsonError at a bracket that does not fit."""
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
        elif char == '"':
            self._in_string = True
        elif char in CLOSER:
            self._closers.append(CLOSER[char])
        elif char in "}]" and (not self._closers or self._closers.pop() != char):
            raise JsonError(char)


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
        self._value = JsonContainer()
        self._escaped = False

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

    def _say(self, char: str) -> None:
        if self.pieces and self.pieces[-1][0] == self._key and self.pieces[-1][1] is not None:
            self.pieces[-1] = (self._key, self.pieces[-1][1] + char)
        else:
            self.pieces.append((self._key, char))

    def _start(self, char: str) -> None:
        if char != "{":
            raise JsonError(char)
        self._state = self._before_key

    def _before_key(self, char: str) -> None:
        if char == "}":
            self.done = True
        elif char == '"':
            self._key, self._state = "", self._in_key
        elif char not in WHITESPACE:
            raise JsonError(char)

    def _in_key(self, char: str) -> None:
        if char == '"' and not self._escaped:
            self._state = self._after_key
            return
        self._escaped = char == "\\" and not self._escaped
        self._key += char

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
        else:
            self._state = self._in_string if char == '"' else self._in_scalar

    def _in_container(self, char: str) -> None:
        self._value.feed(char)
        self._say(char)
        if not self._value.is_open:
            self._end_value()

    def _in_string(self, char: str) -> None:
        self._say(char)
        if char == '"' and not self._escaped:
            self._end_value()
        self._escaped = char == "\\" and not self._escaped

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
