"""JSON schemas made ready for llguidance, at no change of what they mean.

- What no finite value satisfies is replaced by `false`. A node of a linked list whose `next` is
  required has no value that ends: its grammar compiles, and a model writes on until its tokens are
  used up.
- Keywords that llguidance refuses are left out where they say nothing (`uniqueItems: false`, or
  null), and so are formats that are not JSON Schema's own, which are annotations (`password`,
  `int32`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from octavo.structured.lookahead import without_lookahead
from octavo.structured.subschemas import reference_target, subschemas

_SCALARS = ("string", "number", "integer", "boolean", "null")
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
}
"""Values with which a keyword says nothing."""
_FORMATS = frozenset(
    {
        *("date-time", "date", "time", "duration", "email", "idn-email", "hostname"),
        *("idn-hostname", "ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference", "uuid"),
        *("uri-template", "json-pointer", "relative-json-pointer", "regex"),
    }
)
"""JSON Schema 2020-12, validation, section 7.3."""
_LOOK_AROUND = re.compile(r"\(\?<?[=!]|\\[bB]")


def ready_schema(schema: dict[str, Any]) -> dict[str, Any] | bool:
    """The schema as llguidance is to compile it, a changed copy; False where no finite value
    satisfies it."""
    judge = _Judge(schema)
    while judge.goes_on():
        pass
    return _copied(schema, judge)


def _copied(schema: Any, judge: _Judge) -> Any:
    if isinstance(schema, list):
        return [_copied(item, judge) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if judge.is_endless(schema):
        return False
    is_schema = judge.is_judged(schema)
    if is_schema:
        schema = without_lookahead(schema)
    return {
        key: _copied(value, judge)
        for key, value in schema.items()
        if not (is_schema and (_says_nothing(key, value) or _is_beyond(key, value, judge)))
    }


def _says_nothing(key: str, value: Any) -> bool:
    if value is None:  # programs write absent fields so; these may hold any value
        return key not in ("const", "default")
    if key == "format":
        return isinstance(value, str) and value not in _FORMATS
    return any(type(value) is type(n) and value == n for n in _NEUTRAL.get(key, ()))


def _is_beyond(key: str, value: Any, judge: _Judge) -> bool:
    """Whether this is a pattern that cannot be, in a schema whose option is to leave such out."""
    return judge.is_lenient and key == "pattern" and bool(_LOOK_AROUND.search(str(value)))


class _Judge:
    """Which subschemas have a finite value. They are judged again and again until nothing changes:
    a value is finite if it can be built of values that were found to be.

    Attributes:
        is_lenient: llguidance's option of the root: what cannot be bound is left out.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._open = {id(schema): schema for schema in reversed(list(subschemas(root)))}
        self._judged = frozenset(self._open)
        self.is_lenient = _map(root.get("x-guidance")).get("lenient") is True

    def goes_on(self) -> bool:
        """Judge what is open once more; whether that found anything. The other way round each
        time: a chain of references is known after two."""
        before = self._open
        self._open = dict(reversed(before.items()))
        for key, schema in before.items():
            if self._has_finite(schema):
                del self._open[key]
        return 0 < len(self._open) < len(before)

    def is_judged(self, schema: dict[str, Any]) -> bool:
        """Whether this is a schema, and not a part of one, or a value in one."""
        return id(schema) in self._judged

    def is_endless(self, schema: Any) -> bool:
        """Whether it was not found to have a finite value, so far."""
        return id(schema) in self._open

    def _all_finite(self, schemas: Iterator[Any] | list[Any]) -> bool:
        return not any(map(self.is_endless, schemas))

    def _has_finite(self, schema: dict[str, Any]) -> bool:
        if "const" in schema or "enum" in schema:
            return True
        if self.is_endless(reference_target(self._root, schema.get("$ref"))):
            return False
        if not self._all_finite(_list(schema.get("allOf"))):
            return False
        for key in ("anyOf", "oneOf"):
            options = _list(schema.get(key))
            if options and all(map(self.is_endless, options)):
                return False
        said = schema.get("type")
        kinds = [said] if isinstance(said, str) else _list(said) or _SCALARS
        return any(self._has_finite_of(kind, schema) for kind in kinds)

    def _has_finite_of(self, kind: Any, schema: dict[str, Any]) -> bool:
        if kind == "object":
            return self._has_finite_object(schema)
        return kind != "array" or self._has_finite_array(schema)

    def _has_finite_object(self, schema: dict[str, Any]) -> bool:
        named = _map(schema.get("properties"))
        others = schema.get("additionalProperties")
        patterns = list(_map(schema.get("patternProperties")).values())
        for name in filter(_is_name, _list(schema.get("required"))):
            value = named.get(name) if patterns else named.get(name, others)
            if self.is_endless(value):
                return False
        if not _count(schema.get("minProperties")):
            return True
        return not all(map(self.is_endless, [others, *patterns, *named.values()]))

    def _has_finite_array(self, schema: dict[str, Any]) -> bool:
        least = _count(schema.get("minItems"))
        items = schema.get("items")
        first = _list(items) or _list(schema.get("prefixItems"))
        others = schema.get("additionalItems") if isinstance(items, list) else items
        return self._all_finite([*first[:least], *([others] if least > len(first) else [])])


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
