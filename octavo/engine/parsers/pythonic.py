"""Calls written as Python: `get_weather(city="Paris", days=2)`. They are read, never run."""

from __future__ import annotations

import ast
import json
from typing import Any

MAX_DEPTH = 64
"""Deepest nesting of brackets."""
_NAMES = {"true": True, "false": False, "null": None}
_CLOSER = {"(": ")", "[": "]", "{": "}"}


class PythonicError(ValueError):
    """The text is not a call with literal arguments."""


class CallScanner:
    """Finds the end of a call in text that comes in pieces: the parenthesis that closes it."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._quote = ""
        self._escaped = False

    def feed(self, char: str) -> bool:
        """Take one character; True at the end of the call. Raises PythonicError."""
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == self._quote:
                self._quote = ""
        elif char in "'\"":
            self._quote = char
        elif char in _CLOSER:
            self._closers.append(_CLOSER[char])
            if len(self._closers) > MAX_DEPTH:
                raise PythonicError(f"brackets nested deeper than {MAX_DEPTH}")
        elif char in ")]}":
            if not self._closers or self._closers.pop() != char:
                raise PythonicError(char)
            return not self._closers
        elif not self._closers and not (char.isidentifier() or char.isdigit() or char == "."):
            raise PythonicError(char)
        return False


def parse_call(text: str) -> tuple[str, str]:
    """Name and arguments (JSON text) of one call. Raises PythonicError."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise PythonicError(text)
        arguments = {_keyword(k): _value(k.value) for k in call.keywords}
        return ast.unparse(call.func), json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise PythonicError(text) from e


def _keyword(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise PythonicError("**")
    return keyword.arg


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
