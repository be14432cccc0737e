"""Where schemas stand in a JSON schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_SCHEMAS = (
    *("items", "additionalItems", "additionalProperties", "contains", "propertyNames", "not"),
    *("if", "then", "else", "unevaluatedProperties", "unevaluatedItems"),
    *("prefixItems", "allOf", "anyOf", "oneOf"),
)
"""Keywords with a schema or a list of schemas."""
_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
"""Keywords with schemas by name."""
_INDEX = re.compile("[0-9]{1,9}")


def subschemas(root: Any) -> Iterator[dict[str, Any]]:
    """A schema and all within it, also where only references point; each once, outer ones first.
    `true` and `false` are left out."""
    todo = [root]
    seen = set()
    while todo:
        schema = todo.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield schema
        todo.append(reference_target(root, schema.get("$ref")))
        for key in _SCHEMAS:
            value = schema.get(key)
            todo += value if isinstance(value, list) else [value]
        for key in _MAPS:
            value = schema.get(key)
            todo += value.values() if isinstance(value, dict) else ()


def reference_target(root: Any, reference: Any) -> Any:
    """What a pointer within a schema points at (RFC 6901); None: nothing, or elsewhere, as a name
    (`$anchor`) may."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    target = root
    for step in reference.split("/")[1:]:
        if isinstance(target, dict):
            target = target.get(step.replace("~1", "/").replace("~0", "~"))
        elif isinstance(target, list) and _INDEX.fullmatch(step) and int(step) < len(target):
            target = target[int(step)]
        else:
            return None
    return target
