"""What a request's text must be: JSON, a regular expression, one of some texts, a grammar.

`StructuredOutputsParams` is what a user writes; names and rules are vLLM's. `GrammarSource` is what
travels to the engine core: one text in one of four languages (`octavo.structured.sources`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from octavo.errors import RequestError, shown

MAX_GRAMMAR_CHARS = 1 << 18
"""Characters of a schema, expression or grammar."""
MAX_JSON_DEPTH = 64
MAX_CHOICES = 4096

GRAMMAR_PARAM = "structured_outputs"
"""`param` of all errors that are about a grammar."""
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

GrammarKind = Literal["json", "regex", "lark", "gbnf"]


class GrammarSource(msgspec.Struct, frozen=True, array_like=True):
    """A grammar as text. Equal ones are compiled once.

    Attributes:
        kind: the language: a JSON schema with llguidance's options under "x-guidance", a regular
            expression, llguidance's Lark, or GBNF (llama.cpp's EBNF).
        prefix: llguidance's Lark with a rule `prefix`, which is what comes first; "": nothing.
    """

    kind: GrammarKind
    text: str
    prefix: str = ""


class StructuredOutputsParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the output must be. Exactly one of the first six is given.

    Attributes:
        json: a JSON schema, as a dict or as JSON text.
        regex: a regular expression that matches the whole output (Rust's syntax: linear time, no
            look-around but look-ahead at the beginning, no back-references).
        choice: the output is one of these texts.
        grammar: a context-free grammar: llguidance's Lark, or GBNF (rules with ::=).
        json_object: True: any JSON object.
        structural_tag: {"structures": [{"begin", "schema", "end"}, …], "triggers": […]}, as a dict
            or as JSON text: free text in which every trigger begins one of the structures.
        disable_any_whitespace: JSON without white space between its parts.
        disable_additional_properties: objects have only the properties that the schema names,
            where it does not say otherwise.
        whitespace_pattern: a regular expression for white space between the parts of JSON; without
            it, a space, or a new line and up to 15 spaces or tabs.
        reasoning_end_str: reasoning comes first, which may be any text, up to this mark.
        reasoning_start_str: with it there need not be any; what there is begins with this mark.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    reasoning_end_str: str | None = None
    reasoning_start_str: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.choice, (tuple, set, frozenset)):
            self.choice = list(self.choice)
        given = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise _error(
                f"structured_outputs has {', '.join(given) or 'none'} of {', '.join(_KINDS)}; give "
                "exactly one of them"
            )
        for name in ("disable_any_whitespace", "disable_additional_properties", "json_object"):
            if not isinstance(getattr(self, name), (bool, type(None))):
                raise _error(f"{name}={shown(getattr(self, name))} must be true or false")
        marks = ("reasoning_end_str", "reasoning_start_str")
        for name in ("regex", "grammar", "whitespace_pattern", *marks):
            _check_text(name, getattr(self, name), optional=True)
        if self.reasoning_start_str is not None and self.reasoning_end_str is None:
            raise _error("reasoning_start_str needs reasoning_end_str, the mark of its end")
        self._check_options(given[0])
        for name in ("json", "structural_tag"):
            if getattr(self, name) is not None:
                setattr(self, name, _json_text(name, getattr(self, name)))
        if self.json is not None:
            _check_schema(self.json)
        if self.choice is not None:
            self._check_choice(self.choice)

    @property
    def kind(self) -> str:
        """Which of the six is given."""
        return next(name for name in _KINDS if getattr(self, name) not in (None, False))

    def _check_options(self, kind: str) -> None:
        if kind in ("json", "json_object"):
            if self.disable_any_whitespace and self.whitespace_pattern is not None:
                raise _error("disable_any_whitespace and whitespace_pattern exclude each other")
            return
        for name in (
            "disable_any_whitespace",
            "disable_additional_properties",
            "whitespace_pattern",
        ):
            if getattr(self, name):
                raise _error(f"{name} is for json and json_object; there is {kind}")

    def _check_choice(self, choice: Any) -> None:
        if not isinstance(choice, list) or not choice:
            raise _error(f"choice={shown(choice)} must be a list of at least one string")
        if len(choice) > MAX_CHOICES:
            raise _error(f"choice has {len(choice)} texts; at most {MAX_CHOICES}")
        for text in choice:
            _check_text("choice", text)
        if sum(map(len, choice)) > MAX_GRAMMAR_CHARS:
            raise _error(f"choice has more than {MAX_GRAMMAR_CHARS} characters")


def _check_schema(text: Any) -> None:
    """Refuse OpenAI's envelope of a schema, which as a schema would allow anything."""
    keys = set(json.loads(text)) if text not in ("true", "false") else set()
    if "schema" in keys and keys <= {"name", "description", "schema", "strict"}:
        raise _error(
            f"json has the fields {', '.join(sorted(keys))}: that is what response_format holds; "
            "give the schema in it"
        )


def _error(message: str) -> RequestError:
    return RequestError(message, param=GRAMMAR_PARAM)


def _check_text(name: str, text: Any, *, optional: bool = False) -> None:
    if text is None and optional:
        return
    if not isinstance(text, str) or not text:
        raise _error(f"{name}={shown(text)} must be a string that is not empty")
    if len(text) > MAX_GRAMMAR_CHARS:
        raise _error(f"{name} has {len(text)} characters; at most {MAX_GRAMMAR_CHARS}")
    _check_unicode(name, text)


def _check_unicode(name: str, text: str) -> None:
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise _error(f"{name}={shown(text)} holds half a surrogate pair, which no text has")


def _json_text(name: str, value: Any) -> str:
    """A dict or JSON text as JSON text, checked."""
    if isinstance(value, str):
        _check_text(name, value)
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise _error(f"{name} is not valid JSON: {error}") from None
        if not isinstance(parsed, (dict, bool)):
            raise _error(f"{name}={shown(value)} must be a JSON object")
        text = value
        if "\\u" in text:  # an escape may be what no text has
            _check_unicode(name, json.dumps(parsed, ensure_ascii=False))
    elif isinstance(value, Mapping):
        parsed = value
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise _error(f"{name} cannot be written as JSON: {error}") from None
        _check_text(name, text)
    else:
        raise _error(f"{name}={shown(value)} must be a dict or JSON text")
    _check_depth(name, parsed)
    return text


def _check_depth(name: str, value: Any) -> None:
    """Refuse nesting deeper than MAX_JSON_DEPTH."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    if any(isinstance(item, (dict, list)) for item in level):
        raise _error(f"{name} is nested more than {MAX_JSON_DEPTH} levels deep")
