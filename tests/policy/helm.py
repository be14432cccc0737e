"""As much of Helm's templates as the chart uses: if, else, end, range, a few functions.

Not for charts of others: what it does not know is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

_ACTION = re.compile(r"(?:\s*\{\{-|\{\{)\s*(.*?)\s*(?:-\}\}\s*|\}\})", re.DOTALL)
_WORD = re.compile(r'"[^"]*"|[^\s|]+')


def render(chart: Path, values: Mapping[str, Any], release: str = "r") -> dict[str, Any]:
    """File name → the document that a template gives with these values over the chart's own; None
    for an empty one."""
    defaults = yaml.safe_load((chart / "values.yaml").read_text("utf-8"))
    meta = yaml.safe_load((chart / "Chart.yaml").read_text("utf-8"))
    scope = {
        "Values": _merged(defaults, values),
        "Release": {"Name": release},
        "Chart": {key[0].upper() + key[1:]: value for key, value in meta.items()},
    }
    return {
        path.name: yaml.safe_load(_Template(path.read_text("utf-8")).render(scope))
        for path in sorted((chart / "templates").glob("*.yaml"))
    }


def _merged(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    unknown = b.keys() - a.keys()
    assert not unknown, f"no such values: {unknown}"
    deep = {k: _merged(a[k], v) if isinstance(v, dict) and a[k] else v for k, v in b.items()}
    return {**a, **deep}


class _Template:
    def __init__(self, text: str) -> None:
        parts = _ACTION.split(text)
        self._parts = [(i % 2 == 1, part) for i, part in enumerate(parts)]

    def render(self, scope: Mapping[str, Any]) -> str:
        """The text; all blocks must be closed."""
        items = iter(self._parts)
        text, end = self._block(items, scope, scope)
        assert end is None, f"{end} without a beginning"
        return text

    def _block(
        self, items: Iterator[tuple[bool, str]], root: Mapping[str, Any], dot: Any
    ) -> tuple[str, str | None]:
        """The text until `end` or `else`, and which of them it was."""
        out = []
        for is_action, part in items:
            word, _, rest = part.partition(" ")
            if not is_action:
                out.append(part)
            elif word == "if":
                branches = list(self._branches(items, root, dot))
                out.append(branches[0 if _value(rest, root, dot) else 1])
            elif word == "range":
                body = self._until_end(items)
                values = _value(rest, root, dot)
                out += [self._block(iter(body), root, value)[0] for value in values]
            elif word in ("end", "else"):
                return "".join(out), word
            else:
                value = _value(part, root, dot)
                out.append(value if isinstance(value, str) else json.dumps(value))
        return "".join(out), None

    def _branches(
        self, items: Iterator[tuple[bool, str]], root: Mapping[str, Any], dot: Any
    ) -> Iterator[str]:
        text, end = self._block(items, root, dot)
        yield text
        if end == "else":
            text, end = self._block(items, root, dot)
        else:
            text = ""
        assert end == "end", "if without end"
        yield text

    @staticmethod
    def _until_end(items: Iterator[tuple[bool, str]]) -> list[tuple[bool, str]]:
        body: list[tuple[bool, str]] = []
        depth = 1
        for item in items:
            word = item[1].partition(" ")[0] if item[0] else ""
            depth += (word in ("if", "range")) - (word == "end")
            if not depth:
                return body
            body.append(item)
        raise AssertionError("range without end")


def _value(pipeline: str, root: Mapping[str, Any], dot: Any) -> Any:
    value: Any = None
    for i, call in enumerate(pipeline.split("|")):
        words = _WORD.findall(call)
        operands = [_operand(word, root, dot) for word in words[1:]] + ([value] if i else [])
        if words[0] in _FUNCTIONS:
            value = _FUNCTIONS[words[0]](*operands)
        else:
            assert len(words) == 1, f"unknown function: {words[0]}"
            value = _operand(words[0], root, dot)
    return value


def _operand(word: str, root: Mapping[str, Any], dot: Any) -> Any:
    if word.startswith('"'):
        return word[1:-1]
    if word.isdigit():
        return int(word)
    if word == ".":
        return dot
    value: Any = root
    for name in word.removeprefix(".").split("."):
        value = value[name]
    return value


def _indented(width: int, text: str) -> str:
    return "\n" + "\n".join(" " * width + line for line in text.splitlines())


_FUNCTIONS = {
    "add": lambda a, b: a + b,
    "default": lambda default, value: value or default,
    "nindent": _indented,
    "quote": lambda value: json.dumps(str(value)),
    "toYaml": lambda value: yaml.safe_dump(value).rstrip(),
}
