"""Values that a model wrote as plain text, by the JSON types that a schema allows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from octavo.engine.parsers.pythonic import PythonicError, parse_value
from octavo.structured.subschemas import reference_target


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """JSON Schema's names of the types that a schema allows; none where it does not say.

    Args:
        root: the schema in which references point.
    """
    types: set[str] = set()
    is_nullable = False
    todo, seen = [schema], set()
    while todo:
        part = todo.pop()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        is_nullable |= part.get("nullable") is True
        own = _own_types(part)
        types |= own
        if not own:
            todo.append(reference_target(root, part.get("$ref")))
            for key in ("anyOf", "oneOf", "allOf"):
                todo += part[key] if isinstance(part.get(key), list) else []
    return frozenset(types | {"null"} if types and is_nullable else types)


def _own_types(schema: Mapping[str, Any]) -> set[str]:
    """The types that a schema names itself, or those of the values that it allows."""
    said = schema.get("type")
    types = said if isinstance(said, list) else [said]
    if named := {kind for kind in types if isinstance(kind, str)}:
        return named
    if isinstance(schema.get("enum"), list):
        return {_type_of(value) for value in schema["enum"]}
    return {_type_of(schema["const"])} if "const" in schema else set()


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
