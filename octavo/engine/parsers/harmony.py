"""Harmony, the format of gpt-oss: messages in channels.

`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`; a
call is a message with a recipient: `…commentary to=functions.NAME <|constrain|>json<|message|>…`.
(OpenAI, *Harmony response format*, 2025.)
"""

from __future__ import annotations

from collections.abc import Collection

from octavo.contracts.answer_events import (
    CallArguments,
    CallBegin,
    Content,
    Event,
    Reasoning,
    joined,
)
from octavo.engine.parsers.markers import first_marker, num_uncertain
from octavo.engine.parsers.sections import is_name

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_BODY_ENDS = ("<|end|>", "<|return|>", "<|call|>", _START, _CHANNEL)
HARMONY_MARKERS = (*_BODY_ENDS, _MESSAGE)
_TO, _FUNCTIONS = " to=", "functions."
MAX_HEADER_CHARS = 1024
"""Longest header: what goes on without a message is told as content."""


class HarmonyParser:
    """Takes an answer in harmony apart: a message to a function is a call, on whatever channel;
    analysis, and what is said to other tools, is reasoning; all else is content. The answer begins
    with a header, as the prompt ends with `<|start|>assistant`.

    Args:
        functions: names of the request's.
    """

    def __init__(self, functions: Collection[str] = ()) -> None:
        self._functions = functions
        self._buffer = ""
        self._state = self._between
        self._is_reasoning = False
        self._is_call = False
        self._has_arguments = False
        self._num_calls = 0

    def feed(self, text: str) -> list[Event]:
        self._buffer += text
        events: list[Event] = []
        while self._buffer and self._state(events):
            pass
        return joined(events)

    def finish(self) -> list[Event]:
        events: list[Event] = []
        if self._state == self._in_message:
            self._tell(self._buffer, events)
            self._end_message(events)
        elif self._buffer and self._state == self._between:
            events.append(Content(self._buffer))
        self._buffer = ""
        return events

    def _between(self, events: list[Event]) -> bool:
        """In front of a header, or of text without one."""
        if self._buffer.startswith((_START, _CHANNEL)):
            self._state = self._in_header
        elif _START.startswith(self._buffer) or _CHANNEL.startswith(self._buffer):
            return False
        else:
            self._is_reasoning = self._is_call = False
            self._state = self._in_message
        return True

    def _in_header(self, events: list[Event]) -> bool:
        end = self._buffer.find(_MESSAGE)
        if end < 0 and len(self._buffer) < MAX_HEADER_CHARS + len(_MESSAGE):
            return False
        self._state = self._in_message
        if not 0 <= end <= MAX_HEADER_CHARS:
            events.append(Content(self._buffer[:MAX_HEADER_CHARS]))
            self._buffer = self._buffer[MAX_HEADER_CHARS:]
            self._is_reasoning = self._is_call = False
            return True
        header, self._buffer = self._buffer[:end], self._buffer[end + len(_MESSAGE) :]
        recipient = _recipient(header)
        function = self._function(recipient)
        channel = header.rpartition(_CHANNEL)[2].strip()
        self._is_call, self._has_arguments = function is not None, False
        self._is_reasoning = function is None and (
            channel.startswith("analysis") or recipient != ""
        )
        if function is not None:
            events.append(CallBegin(self._num_calls, function))
        return True

    def _function(self, recipient: str) -> str | None:
        """The function that a message is to, if it is to one: `functions.NAME`, perhaps with a word
        behind it for the type of the arguments; of the request's functions, `NAME` too."""
        name = recipient.removeprefix(_FUNCTIONS)
        word = (name.split() or [""])[0]
        known = next((n for n in (name, word) if n in self._functions), None)
        if known is None and recipient.startswith(_FUNCTIONS) and is_name(word):
            return word
        return known

    def _in_message(self, events: list[Event]) -> bool:
        at, marker = first_marker(self._buffer, _BODY_ENDS)
        if not marker:
            certain = len(self._buffer) - num_uncertain(self._buffer, _BODY_ENDS)
            self._tell(self._buffer[:certain], events)
            self._buffer = self._buffer[certain:]
            return False
        self._tell(self._buffer[:at], events)
        # A start or channel marker belongs to the next header.
        self._buffer = self._buffer[at + (0 if marker in (_START, _CHANNEL) else len(marker)) :]
        self._end_message(events)
        self._state = self._between
        return True

    def _end_message(self, events: list[Event]) -> None:
        if self._is_call and not self._has_arguments:
            events.append(CallArguments(self._num_calls, "{}"))
        self._num_calls += self._is_call
        self._is_call = False

    def _tell(self, text: str, events: list[Event]) -> None:
        if not text:
            return
        if self._is_call:
            self._has_arguments = True
            events.append(CallArguments(self._num_calls, text))
        else:
            events.append(Reasoning(text) if self._is_reasoning else Content(text))


def _recipient(header: str) -> str:
    """Whom a message is to, if it says so; a header may say it before or behind the channel."""
    _, _, behind = f" {header}".partition(_TO)
    recipient = behind.partition("<|")[0].strip()
    return "" if recipient.split()[:1] in (["assistant"], ["user"]) else recipient
