"""Objects followed as they come: what is told of their values, and where they stop being JSON."""

from __future__ import annotations

import pytest

from octavo.engine.parsers.json_scanner import JsonObject


def read(text: str) -> tuple[JsonObject, dict[str, str], str]:
    """(the object, key → its whole value, what was not taken)."""
    scanner = JsonObject()
    values: dict[str, str] = {}
    while text and not scanner.done and not scanner.failed:
        text = text[scanner.feed(text) :]
        for key, piece in scanner.pieces:
            values[key] = values.get(key, "") + (piece or "")
    return scanner, values, text


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": 1, "b": "x"}', {"a": "1", "b": '"x"'}),
        ('{"a\\\\": 1}', {"a\\\\": "1"}),  # an escaped backslash is not an escaped quote
        ('{"a\\"b": 1}', {'a\\"b': "1"}),
        ('{"a": "\\\\", "b": "\\""}', {"a": '"\\\\"', "b": '"\\""'}),
        ('{"a": [{"b": "]}"}], "c": null}', {"a": '[{"b": "]}"}]', "c": "null"}),
    ],
)
def test_values(text: str, values: dict[str, str]) -> None:
    scanner, found, rest = read(text + " behind")
    assert (scanner.done, found, rest) == (True, values, " behind")


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("", "["),
        ("{", "1"),
        ('{"a"', "1"),
        ('{"a":', ":"),
        ('{"a":', "}"),
        ('{"a":1', "{"),
        ('{"a":1', '"'),
        ('{"a":"x"', ":"),
        ('{"a":[', "}"),
        ('{"a":[{', "]"),
    ],
)
def test_what_cannot_stand_there(good: str, bad: str) -> None:
    scanner, _, rest = read(good + bad)
    assert (scanner.failed, rest) == (True, bad)
