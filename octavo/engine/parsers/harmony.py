"""Harmony, the format of gpt-oss: messages in channels.

`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`; a
call is a message with a recipient: `…commentary to=functions.NAME <|constrain|>json<|message|>…`.
(OpenAI, *Harmony response format*, 2025.)
"""

from __future__ import annotations

import re

from octavo.contracts.answer_events import (
    CallArguments,
    CallBegin,
    Content,
    Event,
    Reasoning,
    joined,
)
from octavo.engine.parsers.markers import first_marker, num_uncertain

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_BODY_ENDS = ("<|end|>", "<|return|>", "<|call|>", _START, _CHANNEL)
HARMONY_MARKERS = (*_BODY_ENDS, _MESSAGE)
_RECIPIENT = re.compile(r"\bto=functions\.([\w.-]{1,256})")
MAX_HEADER_CHARS = 1024
"""Longest header: what goes on without a message is told as content."""


class HarmonyParser:
    """Takes an answer in harmony apart: analysis is reasoning, a message to a function is a call,
    all else is content. The answer begins with a header, as the prompt ends with
    `<|start|>assistant`."""

    def __init__(self) -> None:
        self._buffer = ""
        self._state = self._between
        self._is_reasoning = False
        self._is_call = False
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
        recipient = _RECIPIENT.search(header)
        channel = header.rpartition(_CHANNEL)[2].strip()
        self._is_reasoning = recipient is None and channel.startswith("analysis")
        self._is_call = recipient is not None
        if recipient is not None:
            events.append(CallBegin(self._num_calls, recipient[1]))
        return True

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
        self._num_calls += self._is_call
        self._is_call = False
        self._state = self._between
        return True

    def _tell(self, text: str, events: list[Event]) -> None:
        if not text:
            return
        if self._is_call:
            events.append(CallArguments(self._num_calls, text))
        else:
            events.append(Reasoning(text) if self._is_reasoning else Content(text))
