"""Logging: one namespace, no handlers unless an entry point asks for them, never what users sent.

A record may carry facts for programs, `extra={"fields": {…}}`: the JSON format writes them as keys
of their own; the text of the message says what of them a person wants. The message of an exception
is left out of its traceback, for it may quote a prompt or a key, unless `OctavoError` worded it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from contextvars import ContextVar
from typing import Any, Literal

from octavo.errors import OctavoError

LogFormat = Literal["text", "json"]

LOG_FORMAT_VARIABLE = "OCTAVO_LOG_FORMAT"

current_request_id: ContextVar[str | None] = ContextVar("octavo_request_id", default=None)
"""The HTTP request that is being answered: what is logged meanwhile carries its id."""


def get_logger(name: str) -> logging.Logger:
    """The logger of a module; `name` is its `__name__`."""
    return logging.getLogger(name)


def configure_logging(level: str | None = None, format: LogFormat | None = None) -> None:
    """Send Octavo's log to stderr.

    Args:
        level: overrides OCTAVO_LOG_LEVEL (default WARNING).
        format: overrides OCTAVO_LOG_FORMAT (default text).
    """
    root = logging.getLogger("octavo")
    root.setLevel((level or os.environ.get("OCTAVO_LOG_LEVEL", "WARNING")).upper())
    if not root.handlers:
        root.addHandler(logging.StreamHandler(sys.stderr))
    as_json = (format or os.environ.get(LOG_FORMAT_VARIABLE, "text")) == "json"
    for handler in root.handlers:
        handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.getLogger("asyncio").handlers = root.handlers  # of tasks that nobody waited for


class TextFormatter(logging.Formatter):
    """A line for people."""

    def __init__(self) -> None:
        super().__init__("%(levelname).1s %(asctime)s %(name)s: %(message)s")

    def formatException(self, ei: Any) -> str:
        return traceback_of(ei[1])


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (RFC 3339, UTC), level, logger, message, request_id where
    there is one, the record's fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request_id := current_request_id.get()) is not None:
            line["request_id"] = request_id
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = traceback_of(record.exc_info[1])
        return json.dumps(line, default=str)  # in ASCII: half a surrogate pair is no UTF-8


def traceback_of(error: BaseException) -> str:
    """Where an error and its causes were raised, and of which types they are."""
    parts: list[str] = []
    current: BaseException | None = error
    while current is not None and len(parts) < 5:
        said = f": {current}" if isinstance(current, OctavoError) else ""
        frames = "".join(traceback.format_tb(current.__traceback__))
        parts.append(f"{frames}{type(current).__module__}.{type(current).__qualname__}{said}")
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )
    return "Traceback (most recent call last):\n" + "\nraised from:\n".join(parts)
