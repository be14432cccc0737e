"""Structural tags to Lark: text with structures in it, in both of xgrammar's ways to write it.

The older one is `{"structures": [{"begin", "schema", "end"}, …], "triggers": […]}`, free text in
which every trigger begins one of the structures; the newer one `{"format": …}`, where formats nest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from octavo.contracts.structured_outputs import GRAMMAR_PARAM
from octavo.errors import RequestError, shown


def tags_grammar(tag: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """A Lark grammar of a structural tag.

    Lexemes marked lazy end where they first can, so that a trigger cannot pass as free text
    (llguidance, docs/toolcalls.md).

    Args:
        options: llguidance's, of the JSON in it.

    Raises:
        RequestError: it is malformed.
    """
    if tag.get("type", "structural_tag") != "structural_tag":
        raise _error(f"has the type {shown(tag['type'])}")
    rules = _Rules(options)
    if set(tag) - {"type"} == {"format"}:
        return rules.grammar(rules.of(tag["format"], is_last=True))
    if unknown := set(tag) - {"type", "structures", "triggers"}:
        raise _error(f"has {shown(sorted(map(str, unknown)))}")
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, list) or not structures:
        raise _error(f"has structures={shown(structures)}")
    tags = []
    for structure in structures:
        if not isinstance(structure, dict) or set(structure) != {"begin", "schema", "end"}:
            raise _error(f"has the structure {shown(structure)}")
        content = {"type": "json_schema", "json_schema": structure["schema"]}
        tags.append({"begin": structure["begin"], "content": content, "end": structure["end"]})
    return rules.grammar(rules.triggered_tags({"tags": tags, "triggers": triggers}, is_last=True))


class _Rules:
    """The rules of a grammar, and the expressions that formats become."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._rules: list[str] = []
        self._of: dict[str, Callable[[dict[str, Any], bool], str]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._either,
            "tag": self._tag,
            "triggered_tags": self.triggered_tags,
            "tags_with_separator": self._separated_tags,
        }

    def grammar(self, start: str) -> str:
        """The grammar whose texts are those of an expression."""
        return "\n".join([f"start: {start}", "text: TEXT", r"TEXT: /(.|\n)*/", *self._rules])

    def of(self, form: Any, is_last: bool) -> str:
        """The expression of a format. `is_last`: nothing comes behind it."""
        kind = form.get("type") if isinstance(form, dict) else form
        if not isinstance(kind, str) or kind not in self._of:
            raise _error(f"has the format {shown(kind)}, which is none of {', '.join(self._of)}")
        return self._of[kind](form, is_last)

    def triggered_tags(self, form: dict[str, Any], is_last: bool) -> str:
        """Free text in which every trigger begins one of the tags."""
        triggers = form.get("triggers")
        if not isinstance(triggers, list) or not all(isinstance(t, str) and t for t in triggers):
            raise _error(f"has triggers={shown(triggers)}")
        tags = []
        for tag in _list(form, "tags"):
            begin = _text(tag, "begin")
            trigger = next((t for t in triggers if begin.startswith(t)), None)
            if trigger is None:
                raise _error(f"has a structure that begins with {shown(begin)}, no trigger")
            rest = quoted(begin[len(trigger) :]) if begin != trigger else ""
            opened = self._rule(f"TEXT {quoted(trigger)}", "[lazy]")
            tags.append(self._rule(f"{opened} {rest} {self._behind_begin(tag)}"))
        either = f"({' | '.join(tags)})"
        first = either if form.get("at_least_one") else ""
        if form.get("stop_after_first"):
            return first or f"({either} | text)"
        if not is_last:
            raise _error("has triggered_tags in front of something; they can only come last")
        return f"{first} {either}* text"

    def _rule(self, body: str, attribute: str = "") -> str:
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{attribute}: {body}")
        return name

    def _const_string(self, form: dict[str, Any], is_last: bool) -> str:
        return quoted(_text(form, "value"))

    def _json_schema(self, form: dict[str, Any], is_last: bool) -> str:
        schema = form.get("json_schema")
        if not isinstance(schema, dict):
            raise _error(f"has the schema {shown(schema)}")
        return f"%json {json.dumps({'x-guidance': self._options, **schema})}"

    def _any_text(self, form: dict[str, Any], is_last: bool) -> str:
        if not is_last:
            raise _error("has any_text in front of something; give a tag with an end")
        return "text"

    def _sequence(self, form: dict[str, Any], is_last: bool) -> str:
        elements = _list(form, "elements")
        ends = [False] * (len(elements) - 1) + [is_last]
        return " ".join(f"({self.of(e, end)})" for e, end in zip(elements, ends))

    def _either(self, form: dict[str, Any], is_last: bool) -> str:
        return " | ".join(f"({self.of(e, is_last)})" for e in _list(form, "elements"))

    def _tag(self, form: dict[str, Any], is_last: bool) -> str:
        return f"{quoted(_text(form, 'begin'))} {self._behind_begin(form)}"

    def _separated_tags(self, form: dict[str, Any], is_last: bool) -> str:
        either = f"({' | '.join(self._rule(self._tag(t, False)) for t in _list(form, 'tags'))})"
        separator = _text(form, "separator")
        more = f"({quoted(separator)} {either})*" if separator else f"{either}*"
        tags = either if form.get("stop_after_first") else f"{either} {more}"
        return tags if form.get("at_least_one") else f"({tags})?"

    def _behind_begin(self, tag: dict[str, Any]) -> str:
        """Content and end of a tag."""
        ends = tag.get("end")
        ends = ends if isinstance(ends, list) else [ends]
        if not ends or not all(isinstance(end, str) for end in ends):
            raise _error(f"has a structure from {shown(tag.get('begin'))} to {shown(ends)}")
        content = tag.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text" and all(ends):
            return self._rule(f"TEXT ({' | '.join(map(quoted, ends))})", "[lazy]")
        end = " | ".join(quoted(end) if end else '""' for end in ends)
        return f"({self.of(content, ends == [''])}) ({end})"


def _list(form: dict[str, Any], name: str) -> list[dict[str, Any]]:
    items = form.get(name)
    if not isinstance(items, list) or not items or not all(isinstance(i, dict) for i in items):
        raise _error(f"has {name}={shown(items)}")
    return items


def _text(form: dict[str, Any], name: str) -> str:
    text = form.get(name)
    if not isinstance(text, str) or (name == "begin" and not text):
        raise _error(f"has {name}={shown(text)}")
    return text


def _error(what: str) -> RequestError:
    return RequestError(
        f"structural_tag {what}; it must be "
        '{"type": "structural_tag", "structures": [{"begin": text, "schema": object, "end": text}, '
        '…], "triggers": [text, …]}, every begin starting with a trigger, or {"type": '
        '"structural_tag", "format": object}',
        param=GRAMMAR_PARAM,
    )


def quoted(text: str) -> str:
    """A literal in Lark: a JSON string, in ASCII because a raw control character is an error."""
    return json.dumps(text)
