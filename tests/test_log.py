from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from octavo.errors import ConfigError
from octavo.log import JsonFormatter, TextFormatter, current_request_id, traceback_of


def record(message: str, *args: Any, error: Exception | None = None, **extra: Any) -> Any:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("octavo.x", logging.WARNING, "x.py", 1, message, args, exc_info)
    vars(made).update(extra)
    return made


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:
        return caught


def test_a_line_of_json() -> None:
    text = JsonFormatter().format(record("a %s\nb", "ü\ud800", fields={"status": 200, "key": None}))
    assert "\n" not in text
    assert text.isascii()
    line = json.loads(text)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "octavo.x",
        "message": "a ü\ud800\nb",
        "status": 200,
        "key": None,
    }


def test_the_request_that_is_answered() -> None:
    token = current_request_id.set("r1")
    try:
        assert json.loads(JsonFormatter().format(record("x")))["request_id"] == "r1"
    finally:
        current_request_id.reset(token)
    assert "request_id" not in json.loads(JsonFormatter().format(record("x")))


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_messages_of_exceptions_are_left_out(formatter: logging.Formatter) -> None:
    """They may quote what a user sent; where and what kind remains."""
    cause = raised(KeyError("my secret prompt"))
    text = formatter.format(record("it failed", error=raised(ValueError("sk-secret"), cause)))
    assert "secret" not in text
    for part in ("it failed", "builtins.ValueError", "builtins.KeyError", "test_log.py"):
        assert part in text


def test_our_own_messages_are_kept() -> None:
    assert "port=99999" in traceback_of(raised(ConfigError("port=99999 must be …")))
    hidden = raised(ConfigError("x"), None)
    assert "raised from" not in traceback_of(hidden)


def test_anything_may_be_a_field() -> None:
    line = json.loads(JsonFormatter().format(record("x", fields={"params": object()})))
    assert line["params"].startswith("<object")
