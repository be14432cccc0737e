"""From `StructuredOutputsParams` to one text in a language that llguidance reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from octavo.contracts.structured_outputs import (
    GRAMMAR_PARAM,
    GrammarSource,
    StructuredOutputsParams,
)
from octavo.errors import RequestError, shown
from octavo.structured.subschemas import subschemas
from octavo.structured.tags import quoted, tags_grammar

DEFAULT_WHITESPACE = r"( |\r?\n[ \t]{0,15})"
"""White space between the parts of JSON: a space, or a new line and its indentation. JSON allows
any amount, and a model may not find its way out of it."""


def grammar_source(
    params: StructuredOutputsParams, mark_of: Callable[[str], str] = json.dumps
) -> GrammarSource:
    """The grammar that a request asks for.

    Args:
        mark_of: how a mark of reasoning is written in Lark: text, or a special token.

    Raises:
        RequestError: a structural tag or a schema's x-guidance is malformed. Whether a grammar can
            be used is found out when it is compiled.
    """
    source = _source(params)
    if params.reasoning_end_str is None:
        return source
    prefix = _reasoning(mark_of(params.reasoning_end_str))
    if params.reasoning_start_str is not None:
        prefix = f"prefix: ({mark_of(params.reasoning_start_str)} reasoning)?\n{prefix}"
    else:
        prefix = f"prefix: reasoning\n{prefix}"
    return GrammarSource(source.kind, source.text, prefix)


def _reasoning(end: str) -> str:
    """Lark of any text up to a mark, with white space behind it."""
    ends = end.startswith("<")  # a special token, which is no text
    text = f"thought: ANY {end}" if ends else f"thought[lazy]: ANY {end}"
    return f"reasoning: thought WHITE?\n{text}\nANY: /(.|\\n)*/\nWHITE: /[ \\t\\r\\n]{{1,8}}/"


def _source(params: StructuredOutputsParams) -> GrammarSource:
    if params.json is not None:
        assert isinstance(params.json, str), "checking it made it text"
        return GrammarSource("json", _with_options(json.loads(params.json), params))
    if params.json_object:
        return GrammarSource("json", _with_options({"type": "object"}, params))
    if params.regex is not None:
        return GrammarSource("regex", params.regex)
    if params.choice is not None:
        # One lexeme: alternatives of a rule would be an item each, of which a row has few.
        texts = " | ".join(map(quoted, params.choice))
        return GrammarSource("lark", f"start: CHOICE\nCHOICE: {texts}")
    if params.grammar is not None:
        return GrammarSource("gbnf" if "::=" in params.grammar else "lark", params.grammar)
    assert isinstance(params.structural_tag, str), "checking it made it text"
    options = {"whitespace_pattern": DEFAULT_WHITESPACE}
    return GrammarSource("lark", tags_grammar(json.loads(params.structural_tag), options))


def _with_options(schema: Any, params: StructuredOutputsParams) -> str:
    """The schema with llguidance's options."""
    if schema is False:
        raise RequestError("the schema is false, which nothing satisfies", param=GRAMMAR_PARAM)
    if schema is True:
        schema = {}
    if params.disable_additional_properties:
        _close_objects(schema)
    options: dict[str, Any] = {"whitespace_pattern": DEFAULT_WHITESPACE}
    own = schema.get("x-guidance", {})
    if not isinstance(own, dict):
        raise RequestError(
            f"x-guidance={shown(own)} of a schema must be an object", param=GRAMMAR_PARAM
        )
    options |= own
    if params.whitespace_pattern is not None:
        options["whitespace_pattern"] = params.whitespace_pattern
    if params.disable_any_whitespace:
        options = {**options, "whitespace_flexible": False, "whitespace_pattern": None}
    return json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)


def _close_objects(schema: Any) -> None:
    """Say additionalProperties: false in every schema that names properties and does not say."""
    for item in subschemas(schema):
        if "properties" in item or "patternProperties" in item:
            item.setdefault("additionalProperties", False)
