"""Regular expressions with look-ahead at their beginning, as several without.

`^(?=.*[0-9])(?!foo).+$` says of a text that it matches `.+`, begins with `.*[0-9]`, and does not
begin with `foo`. llguidance knows no look-ahead, but it can intersect.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_BEGINS = ("(?=", "(?!")
_ALL_OF_CLASS = re.compile(r"(\[(?:[^\]\\]|\\.)+\]|\\[sSdDwW])([*+])\$", re.DOTALL)
"""The text is made of some characters alone: `[-+.]*$`."""


class Lookahead(NamedTuple):
    """A condition on the text from its beginning on.

    Attributes:
        text: an expression; how much of the text it must match.
        is_whole: it must match all of the text, and not only its beginning.
        is_negative: it must not.
    """

    text: str
    is_whole: bool
    is_negative: bool


def split_lookaheads(pattern: str) -> tuple[list[Lookahead], str]:
    """The conditions at a pattern's beginning, and the pattern without them. There are none where
    it has alternatives, of which they would belong to the first."""
    anchor = "^" if pattern.startswith("^") else ""
    at = len(anchor)
    found = []
    while pattern.startswith(_BEGINS, at):
        end = _closing(pattern, at)
        if end is None:
            return [], pattern
        inner = pattern[at + len(_BEGINS[0]) : end].removeprefix("^")
        is_whole = inner.endswith("$") and not _is_escaped(inner, len(inner) - 1)
        found.append(Lookahead(inner.removesuffix("$") if is_whole else inner, is_whole,
                               pattern[at + 2] == "!"))  # fmt: skip
        at = end + 1
    rest = pattern[at:]
    return (found, anchor + rest) if found and not _has_alternatives(rest) else ([], pattern)


def without_lookahead(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema whose pattern has no look-ahead, where that can be said with more patterns."""
    pattern = schema.get("pattern")
    if not isinstance(pattern, str) or not pattern.startswith("^"):
        return schema
    lookaheads, rest = split_lookaheads(pattern)
    patterns = list(map(_as_pattern, lookaheads))
    also = schema.get("allOf") or []
    if not patterns or None in patterns or not isinstance(also, list):
        return schema
    return {**schema, "pattern": rest, "allOf": [*also, *({"pattern": p} for p in patterns)]}


def _as_pattern(lookahead: Lookahead) -> str | None:
    """The condition as a pattern of JSON Schema, which is found anywhere; None: it cannot be."""
    if not lookahead.is_negative:
        return f"^(?:{lookahead.text}){'$' if lookahead.is_whole else ''}"
    of_class = _ALL_OF_CLASS.fullmatch(lookahead.text + "$") if lookahead.is_whole else None
    if of_class is None:
        return None
    kind, repeated = of_class.groups()
    if kind.startswith("\\"):
        other = kind.swapcase()
    else:
        other = f"[{kind[2:]}" if kind.startswith("[^") else f"[^{kind[1:]}"
    return other if repeated == "*" else f"^$|{other}"


def _closing(pattern: str, begin: int) -> int | None:
    """Where the group that begins there ends; None: nowhere."""
    depth = 0
    for at, char in _outside_of_classes(pattern, begin):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return at
    return None


def _has_alternatives(pattern: str) -> bool:
    depth = 0
    for _, char in _outside_of_classes(pattern, 0):
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            return True
    return False


def _outside_of_classes(pattern: str, begin: int) -> list[tuple[int, str]]:
    """The characters that are not escaped and not in a class."""
    return [
        (begin + match.start(), match[0])
        for match in re.finditer(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", pattern[begin:], re.DOTALL)
        if len(match[0]) == 1
    ]


def _is_escaped(text: str, at: int) -> bool:
    return (at - len(text[:at].rstrip("\\"))) % 2 == 1
