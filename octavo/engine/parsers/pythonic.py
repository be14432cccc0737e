"""Calls written as Python: `get_weather(city="Paris", days=2)`. They are read, never run."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

MAX_DEPTH = 64
"""Deepest nesting of brackets."""
_NAMES = {"true": True, "false": False, "null": None}
_CLOSER = {"(": ")", "[": "]", "{": "}"}
_KEY = re.compile(r"[\w.-]+")
_LINE_ENDS = {"\n": "\\n", "\r": "\\r"}
_ESCAPES = "\n\\'\"abfnrtv01234567xNuU"
"""What may stand behind a backslash; before anything else it is itself."""


class PythonicError(ValueError):
    """The text is not a call with literal arguments."""


class CallScanner:
    """Takes a call apart in text that comes in pieces, up to the parenthesis that closes it.

    Python's grammar is asked for values alone: parameters may have the names of its keywords
    (`from=1`), functions any, and line feeds may stand within quotes.
    """

    def __init__(self) -> None:
        self._name = ""
        self._arguments: list[str] = []
        self._argument = ""
        self._closers: list[str] = []
        self._quote = ""
        self._escaped = False

    def feed(self, char: str) -> bool:
        """Take one character; True at the end of the call. Raises PythonicError."""
        if not self._closers:
            self._in_name(char)
            return False
        if self._quote:
            self._in_quote(char)
            return False
        if char in "'\"":
            self._quote = char
        elif char in _CLOSER:
            self._open(char)
        elif char in ")]}":
            if self._closers.pop() != char:
                raise PythonicError(char)
            if not self._closers:
                return True
        elif char == "," and len(self._closers) == 1:
            self._arguments.append(self._argument)
            self._argument = ""
            return False
        self._argument += char
        return False

    def call(self) -> tuple[str, str]:
        """Name and arguments (JSON text), at the end of the call. Raises PythonicError."""
        arguments = [*self._arguments]
        if self._argument.strip():  # else there are none, or a comma is behind the last one
            arguments.append(self._argument)
        values = {}
        for argument in arguments:
            key, is_named, text = argument.partition("=")
            if not is_named or not _KEY.fullmatch(key.strip()):
                raise PythonicError(argument)
            values[key.strip()] = parse_value(text)
        return self._name.strip(), json.dumps(values, ensure_ascii=False)

    def _in_name(self, char: str) -> None:
        if char == "(":
            self._open(char)
        elif char in "<>{}[]),'\"=\n":
            raise PythonicError(char)
        else:
            self._name += char

    def _in_quote(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
            if char not in _ESCAPES:
                self._argument += "\\"
        elif char == "\\":
            self._escaped = True
        elif char == self._quote:
            self._quote = ""
        else:
            char = _LINE_ENDS.get(char, char)
        self._argument += char

    def _open(self, char: str) -> None:
        if len(self._closers) == MAX_DEPTH:
            raise PythonicError(f"brackets nested deeper than {MAX_DEPTH}")
        self._closers.append(_CLOSER[char])


def parse_value(text: str) -> Any:
    """The value of a literal in Python's syntax, such as JSON has. Raises PythonicError."""
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
        json.dumps(value, allow_nan=False)
        return value
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise PythonicError(text) from e


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(k): _value(v) for k, v in zip(node.keys, node.values)}
    value = ast.literal_eval(node)
    if value is not None and not isinstance(value, (str, bool, int, float)):
        raise PythonicError(repr(value))
    return value


def _key(node: ast.expr | None) -> str:
    key = None if node is None else ast.literal_eval(node)
    if not isinstance(key, str):
        raise PythonicError("a key that is not a string")
    return key
