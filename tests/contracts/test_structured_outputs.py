"""`StructuredOutputsParams`: every field, its limits and what their errors say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.contracts.structured_outputs import (
    MAX_CHOICES,
    MAX_GRAMMAR_CHARS,
    MAX_JSON_DEPTH,
    StructuredOutputsParams,
)
from octavo.errors import RequestError


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"json": {"type": "object"}}, "json"),
        ({"json": '{"enum": ["é", 1]}'}, "json"),
        ({"json": "true"}, "json"),
        ({"json": {}}, "json"),
        ({"json": nested(MAX_JSON_DEPTH)}, "json"),
        ({"regex": "a+"}, "regex"),
        ({"choice": ["a", "b"]}, "choice"),
        ({"choice": ("a",), "json_object": False}, "choice"),
        ({"grammar": 'start: "a"'}, "grammar"),
        ({"json_object": True, "disable_any_whitespace": True}, "json_object"),
        ({"json": {}, "whitespace_pattern": " ?"}, "json"),
        ({"structural_tag": {"structures": [], "triggers": []}}, "structural_tag"),
    ],
)
def test_taken(fields: dict[str, Any], kind: str) -> None:
    assert StructuredOutputsParams(**fields).kind == kind


def test_schemas_become_text_in_their_order() -> None:
    schema = {"type": "object", "properties": {"z": {}, "é": {}, "a": {}}}
    text = StructuredOutputsParams(json=schema).json
    assert isinstance(text, str)
    assert list(json.loads(text)["properties"]) == ["z", "é", "a"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "none of json"),
        ({"json_object": False}, "none of"),
        ({"json": {}, "regex": "a"}, "json, regex of"),
        ({"json": "{"}, "not valid JSON"),
        ({"json": "[1]"}, "must be a JSON object"),
        ({"json": [1]}, "must be a dict or JSON text"),
        ({"json": {"a": {1, 2}}}, "cannot be written as JSON"),
        ({"json": {"maximum": float("nan")}}, "cannot be written as JSON"),
        ({"json": nested(MAX_JSON_DEPTH + 1)}, "nested more than 64"),
        ({"json": {"enum": ["x" * MAX_GRAMMAR_CHARS]}}, "characters; at most 262144"),
        ({"regex": ""}, "must be a string that is not empty"),
        ({"regex": 5}, "must be a string"),
        ({"regex": "a\ud800"}, "surrogate"),
        ({"json": '{"const": "\\ud800"}'}, "surrogate"),
        ({"structural_tag": '{"triggers": ["\\udc00"]}'}, "surrogate"),
        ({"grammar": "a" * (MAX_GRAMMAR_CHARS + 1)}, "characters; at most 262144"),
        ({"choice": []}, "at least one string"),
        ({"choice": "ab"}, "at least one string"),
        ({"choice": ["a", ""]}, "must be a string that is not empty"),
        ({"choice": ["a", 1]}, "must be a string"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, "4097 texts; at most 4096"),
        ({"choice": ["a" * 2**17] * 3}, "more than 262144 characters"),
        ({"json_object": 1}, "must be true or false"),
        ({"json": {}, "disable_any_whitespace": "yes"}, "must be true or false"),
        ({"regex": "a", "whitespace_pattern": " "}, "is for json and json_object; there is regex"),
        ({"choice": ["a"], "disable_additional_properties": True}, "there is choice"),
        (
            {"json": {}, "disable_any_whitespace": True, "whitespace_pattern": " "},
            "exclude each other",
        ),
    ],
)
def test_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestError, match=why) as caught:
        StructuredOutputsParams(**fields)
    assert caught.value.param == "structured_outputs"
