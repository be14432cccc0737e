"""Values that a model wrote as plain text, by the JSON types that a schema allows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from octavo.engine.parsers.pythonic import PythonicError, parse_value

_MAX_DEPTH = 16
"""Of references and alternatives within each other; what is deeper says nothing of types."""


def types_of(schema: Any, root: Mapping[str, Any], depth: int = _MAX_DEPTH) -> frozenset[str]:
    """JSON Schema's names of the types that a schema allows; none where it does not say.

    Args:
        root: the schema in which references point.
    """
    if not isinstance(schema, Mapping) or not depth:
        return frozenset()
    said = schema.get("type")
    types = {said} if isinstance(said, str) else set()
    if isinstance(said, list):
        types = {kind for kind in said if isinstance(kind, str)}
    if not types:
        if isinstance(schema.get("enum"), list):
            types = {_type_of(value) for value in schema["enum"]}
        elif "const" in schema:
            types = {_type_of(schema["const"])}
    if not types:
        parts = [_target(schema["$ref"], root)] if "$ref" in schema else []
        for key in ("anyOf", "oneOf", "allOf"):
            parts += schema[key] if isinstance(schema.get(key), list) else []
        for part in parts:
            types |= types_of(part, root, depth - 1)
    if types and schema.get("nullable") is True:
        types.add("null")
    return frozenset(types)


def value_of(text: str, types: frozenset[str]) -> Any:
    """The value that a text stands for. Where the types allow a string and nothing else fits, that
    is the text; so it is where nothing fits at all."""
    if not types:  # the text alone tells: a list or an object, or else text
        value = _parsed(text)
        return value if isinstance(value, (dict, list)) else text
    if types == {"string"}:
        return text
    plain = text.strip()
    if "null" in types and plain.lower() in ("null", "none"):
        return None
    if "boolean" in types and plain.lower() in ("true", "false"):
        return plain.lower() == "true"
    value = _parsed(plain)
    if value is None:
        return text
    if "integer" in types and isinstance(value, float) and value.is_integer():
        return int(value)
    kind = _type_of(value)
    fits = kind in types or (kind == "integer" and "number" in types)
    return value if fits or "string" not in types else text


def _parsed(text: str) -> Any:
    """The value of JSON, or of a literal in Python's syntax; None where it is neither."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        pass
    try:
        return parse_value(text)
    except PythonicError:
        return None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number of JSON")
    return value


def _type_of(value: Any) -> str:
    for kind, python in (
        ("null", type(None)),
        ("boolean", bool),
        ("integer", int),
        ("number", float),
        ("string", str),
        ("array", list),
    ):
        if isinstance(value, python):
            return kind
    return "object"


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    """What `#/$defs/NAME` points at; None where that is nothing."""
    target: Any = root
    steps = str(reference).removeprefix("#").split("/")[1:]
    for step in steps:
        key = step.replace("~1", "/").replace("~0", "~")
        target = target.get(key) if isinstance(target, Mapping) else None
    return target if str(reference).startswith("#") else None
