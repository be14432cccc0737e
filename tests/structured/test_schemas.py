"""Schemas made ready: what has no end is left out or refused, and what says nothing is dropped."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.structured.schemas import ready_schema
from octavo.structured.subschemas import reference_target, subschemas

SELF = {"$ref": "#"}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}, "required": ["next"]}


@pytest.mark.parametrize(
    "schema",
    [
        SELF,
        {"$defs": {"N": {"$ref": "#/$defs/N"}}, "$ref": "#/$defs/N"},
        {"type": "object", "properties": {"a": SELF}, "required": ["a"]},
        {"type": "object", "additionalProperties": SELF, "required": ["a"]},
        {"type": "object", "additionalProperties": SELF, "minProperties": 1},
        {"type": ["object", "array"], "properties": {"a": SELF}, "required": ["a"], "minItems": 1,
         "items": SELF},
        {"type": "array", "items": SELF, "minItems": 1},
        {"type": "array", "prefixItems": [{}, SELF], "minItems": 2},
        {"type": "array", "items": [SELF], "minItems": 1},
        {"anyOf": [SELF, {"allOf": [{"type": "string"}, SELF]}]},
        {"$defs": {"N": NODE}, "$ref": "#/$defs/N"},
        {"$defs": {"A": {"type": "object", "properties": {"b": {"$ref": "#/$defs/B"}},
                         "required": ["b"]},
                   "B": {"type": "array", "items": {"$ref": "#/$defs/A"}, "minItems": 1}},
         "$ref": "#/$defs/A"},
        {"components": {"N": {"allOf": [{"$ref": "#/components/N"}]}}, "$ref": "#/components/N"},
    ],
)  # fmt: skip
def test_no_finite_value(schema: dict[str, Any]) -> None:
    """vllm#57725: it compiles, and whatever is written of it never ends."""
    assert ready_schema(schema) is False


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"a": SELF}},
        {"type": "object", "additionalProperties": SELF},
        {"type": "object", "properties": {"a": SELF, "b": {}}, "minProperties": 1},
        {"type": "object", "properties": {"a": SELF}, "required": ["a"], "const": {}},
        {"type": ["object", "null"], "properties": {"a": SELF}, "required": ["a"]},
        {"properties": {"a": SELF}, "required": ["a"]},
        {"type": "array", "items": SELF},
        {"type": "array", "items": SELF, "prefixItems": [{}], "minItems": 1},
        {"anyOf": [SELF, {"type": "null"}]},
        {"$ref": "#/nowhere/1"},
        {"$ref": f"#/enum/{'9' * 5000}", "enum": [1]},
        {"type": "object", "required": [["a"]]},
        {"$ref": "https://example.org/"},
        {"$ref": "#name", "$defs": {"A": {"$anchor": "name"}}},
        {"type": "object", "patternProperties": {"^a": {}}, "required": ["a"],
         "additionalProperties": SELF},
    ],
)  # fmt: skip
def test_values_that_end(schema: dict[str, Any]) -> None:
    assert ready_schema(schema) == schema


def test_what_need_not_be_chosen_is_left_out() -> None:
    schema = {
        "$defs": {"N": NODE},
        "type": "object",
        "properties": {"list": {"$ref": "#/$defs/N"}, "n": {"type": "integer"}},
        "enum_like": {"$ref": "#/$defs/N"},
    }
    ready = ready_schema(schema)
    assert isinstance(ready, dict)
    assert ready["properties"] == {"list": False, "n": {"type": "integer"}}
    assert ready["$defs"] == {"N": False}


def test_values_in_schemas_are_no_schemas() -> None:
    schema = {"const": SELF, "properties": {"$ref": {}, "format": {"format": "date"}, "const": {}}}
    assert ready_schema(schema) == schema


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({"uniqueItems": False}, {}),
        ({"uniqueItems": True}, {"uniqueItems": True}),
        ({"propertyNames": {"type": "string"}}, {}),
        ({"propertyNames": {"pattern": "a"}}, {"propertyNames": {"pattern": "a"}}),
        ({"unevaluatedProperties": True, "dependentRequired": {}}, {}),
        ({"unevaluatedProperties": False}, {"unevaluatedProperties": False}),
        ({"type": "string", "format": "password"}, {"type": "string"}),
        ({"format": "int32"}, {}),
        ({"format": "date-time"}, {"format": "date-time"}),
        ({"format": "regex"}, {"format": "regex"}),
        ({"uniqueItems": 0}, {"uniqueItems": 0}),
        ({"type": None, "required": None, "enum": None, "items": None, "anyOf": None}, {}),
        ({"const": None, "default": None}, {"const": None, "default": None}),
        (
            {"enum": [None], "properties": {"b": {"minimum": None}}},
            {"enum": [None], "properties": {"b": {}}},
        ),
        ({"properties": {"uniqueItems": False}}, {"properties": {"uniqueItems": False}}),
    ],
)
def test_what_says_nothing_is_dropped(said: dict[str, Any], left: dict[str, Any]) -> None:
    """vllm#42904."""
    schema = {"type": "object", "properties": {"a": said}}
    assert ready_schema(schema) == {"type": "object", "properties": {"a": left}}


def test_subschemas() -> None:
    schema = {"a": {}, "items": [{"$ref": "#/a"}, True], "$defs": {"items": {"const": {}}}}
    found = list(subschemas(schema))
    assert found[0] is schema
    assert [s for s in found[1:] if s == {}] == [schema["a"]]
    assert len(found) == 4


@pytest.mark.parametrize(
    ("reference", "target"),
    [("#", 0), ("#/a~1b/1", 2), ("#/c~0", 3), ("#/a~1b/2", None), ("#/a~1b/x", None),
     ("#/x", None), ("#/c~0/y", None), ("x#", None), ("#c~", None), (5, None)],
)  # fmt: skip
def test_references(reference: Any, target: Any) -> None:
    root = {"a/b": [1, 2], "c~": 3}
    assert reference_target(root, reference) == (root if target == 0 else target)


@pytest.mark.parametrize("pattern", ["^(?!foo).*$", "a(?<=b)", r"\bfoo\b"])
def test_patterns_that_cannot_be_are_left_out_on_request(pattern: str) -> None:
    schema = {"type": "array", "items": {"type": "string", "pattern": pattern}}
    assert ready_schema(schema) == schema
    options = {"x-guidance": {"lenient": True}}
    assert ready_schema({**schema, **options}) == {
        "type": "array",
        "items": {"type": "string"},
        **options,
    }
