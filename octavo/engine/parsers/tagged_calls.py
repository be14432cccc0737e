"""Sections whose calls are tags."""

from __future__ import annotations

import json

from octavo.engine.parsers.json_scanner import WHITESPACE
from octavo.engine.parsers.markers import first_marker
from octavo.engine.parsers.schema_types import types_of, value_of
from octavo.engine.parsers.sections import MAX_NAME_CHARS, BufferedSection, SectionStart

_FUNCTION, _PARAMETER = "<function=", "<parameter="
_FUNCTION_END, _PARAMETER_END = "</function>", "</parameter>"


class TaggedCalls(BufferedSection):
    """`<function=NAME><parameter=KEY>VALUE</parameter>…</function>`: values are plain text, of the
    types that the function's schema has. A parameter is told when it is complete.

    Args:
        close: the marker behind the section.
    """

    def __init__(self, start: SectionStart, *, close: str) -> None:
        super().__init__(start)
        self._close = close
        self._function = ""
        self._num_parameters = 0

    def between(self) -> bool:
        if self.buffer[0] in WHITESPACE:
            self.take(1)
            return True
        marker = self.marker((_FUNCTION, self._close))
        if marker is None:
            return False
        if marker != _FUNCTION:
            return self.over()
        self.state = self._in_name
        return True

    def _in_name(self) -> bool:
        end = self.buffer.find(">")
        if end < 0 and len(self.buffer) <= MAX_NAME_CHARS:
            return False
        name = self.buffer[: max(end, 0)].strip()
        if end > MAX_NAME_CHARS or not self.begin_call(name):
            return self.reject()
        self._function = name
        self.take(end + 1)
        self._num_parameters = 0
        self.state = self._in_function
        return True

    def _in_function(self) -> bool:
        if self.buffer[0] in WHITESPACE:
            self.take(1)
            return True
        if self.buffer.startswith(_PARAMETER):
            return self._in_parameter()
        marker = self.marker((_FUNCTION_END, _PARAMETER))
        if marker is None:
            return False
        self.say_arguments("}" if self._num_parameters else "{}")
        return self.end_call()

    def _in_parameter(self) -> bool:
        """A parameter ends at its end tag, or where without one the next tag begins a line."""
        begin = len(_PARAMETER)
        at, marker = first_marker(
            self.buffer[begin:], (_PARAMETER_END, "\n" + _PARAMETER, "\n" + _FUNCTION_END)
        )
        if not marker:
            return False
        key, _, value = self.take(begin + at)[begin:].partition(">")
        if marker == _PARAMETER_END:
            self.take(len(marker))
            value = value.removesuffix("\n")
        key = key.strip()
        value = value.removeprefix("\n")
        schema = self.start.parameters.get(self._function, {})
        properties = schema.get("properties")
        types = types_of(properties.get(key) if isinstance(properties, dict) else None, schema)
        typed = json.dumps({key: value_of(value, types)}, ensure_ascii=False)
        self.say_arguments((", " if self._num_parameters else "{") + typed[1:-1])
        self._num_parameters += 1
        return True


class TaggedFunction(TaggedCalls):
    """The same where the marker in front is that of the first function. It must be one of the
    request's."""

    def __init__(self, start: SectionStart, *, close: str) -> None:
        super().__init__(start, close=close)
        self.state = self._in_name

    def begin_call(self, name: str) -> bool:
        return name in self.start.parameters and super().begin_call(name)
