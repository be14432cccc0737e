"""From a `GrammarSource` to one text that llguidance's core reads."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from octavo.contracts.structured_outputs import GrammarSource
from octavo.structured.backend import GrammarError, clean_error
from octavo.structured.lookahead import split_lookaheads
from octavo.structured.schemas import ready_schema

if TYPE_CHECKING:
    from llguidance.gbnf_to_lark import ASTNode, RuleNode

_LARK = re.compile(r"(?m)^\s*(%llguidance\b|start\s*:(?!:=))")
_ENDLESS = (
    "no finite value satisfies the schema: it requires itself within itself, without end; let its "
    "$ref be left out or be null"
)


def native_text(source: GrammarSource) -> str:
    """The grammar as llguidance's JSON.

    Raises:
        GrammarError: GBNF or a regular expression with a syntax error, or a schema that has no
            finite value.
    """
    body = _grammar(source)
    if not source.prefix:
        return json.dumps({"grammars": [body]}, ensure_ascii=False)
    first = {"lark_grammar": f"start: prefix @body\n{source.prefix}"}
    return json.dumps({"grammars": [first, {"name": "body", **body}]}, ensure_ascii=False)


def _grammar(source: GrammarSource) -> dict[str, Any]:
    if source.kind == "json":
        schema = ready_schema(json.loads(source.text))
        if schema is False:
            raise GrammarError(_ENDLESS)
        return {"json_schema": schema}
    if source.kind == "regex":
        return {"lark_grammar": _regex(source.text)}
    if source.kind == "gbnf" and not _LARK.search(source.text):
        return {"lark_grammar": _lark(source.text)}
    return {"lark_grammar": source.text}


def _regex(text: str) -> str:
    """A Lark grammar of a regular expression."""
    if _num_backslashes(text) % 2:  # llguidance would leave it out
        raise GrammarError("the regular expression ends with a backslash that escapes nothing")
    if text.endswith("\\Z") and _num_backslashes(text[:-1]) % 2:
        text = text[:-2] + "$"  # as in Python
    lookaheads, rest = split_lookaheads(text)
    conditions = [_terminal(rest)]
    for lookahead in lookaheads:
        more = "" if lookahead.is_whole else r"(.|\n)*"
        terminal = _terminal(f"(?:{lookahead.text}){more}")
        conditions.append(f"~{terminal}" if lookahead.is_negative else terminal)
    return (
        f"start: TEXT\nTEXT: {' & '.join(conditions)}" if lookaheads else f"start: {conditions[0]}"
    )


def _terminal(regex: str) -> str:
    """A regular expression between slashes."""
    from llguidance import LLMatcher

    (grammar,) = json.loads(LLMatcher.grammar_from_regex(regex))["grammars"]
    terminal: str = grammar["lark_grammar"].removeprefix("start: ")
    return terminal


def _num_backslashes(text: str) -> int:
    """How many stand at its end."""
    return len(text) - len(text.rstrip("\\"))


def _lark(gbnf: str) -> str:
    """A Lark grammar of one in GBNF."""
    from llguidance.gbnf_to_lark import GrammarParser, gbnf_to_lark

    try:
        plain = _plain_gbnf(gbnf)
        lark = gbnf_to_lark(plain)
        ends = _ending_rules(GrammarParser().parse(plain))
    except Exception as error:  # the converter's own class, or what its recursion meets
        raise GrammarError(clean_error(str(error))) from None
    if "root" not in ends:
        raise GrammarError("no text of the grammar ends: its rule root needs itself, without end")
    return lark


def _ending_rules(rules: dict[str, RuleNode]) -> set[str]:
    """Names of the rules that have a finite text."""
    from llguidance.gbnf_to_lark import AlternativeNode, RepetitionNode, RuleRefNode

    ending: set[str] = set()

    def ends(node: ASTNode) -> bool:
        if isinstance(node, RuleRefNode):
            return node.name in ending
        if isinstance(node, RepetitionNode):
            return node.min_times == 0 or ends(node.node)
        judged = map(ends, node.children())
        return any(judged) if isinstance(node, AlternativeNode) else all(judged)

    while found := {n for n, r in rules.items() if n not in ending and ends(r.alternatives)}:
        ending |= found
    return ending


_COMMENT_OR_LITERAL = r"#[^\r\n]*|\"(?:[^\"\\\r\n]|\\.)*\"|\[(?:[^\]\\\r\n]|\\.)*\]"
_UNIT = re.compile(rf"{_COMMENT_OR_LITERAL}|(?<!\s)\s+(?=\|)|(?<![\w-])start(?![\w-])")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([-^/.])|(.))")


def _plain_gbnf(text: str) -> str:
    """The same without what llguidance's converter does not read: comments, alternatives that begin
    a line, a rule `start`, and escapes other than those of JSON's one-letter kind."""
    return _UNIT.sub(_plain_unit, _UNIT.sub(lambda m: "" if m[0][0] == "#" else m[0], text))


def _plain_unit(unit: re.Match[str]) -> str:
    if unit[0] == "start":
        return "start-of-gbnf"
    return _ESCAPE.sub(_plain_escape, unit[0]) if unit[0][0] in '"[' else " "


def _plain_escape(escape: re.Match[str]) -> str:
    hexadecimal = escape[1] or escape[2] or escape[3]
    if hexadecimal is None and escape[4] is None:
        return escape[0]
    code = int(hexadecimal, 16) if hexadecimal else ord(escape[4])
    if 0xD800 <= code <= 0xDFFF:  # no character: the converter says so
        return escape[0]
    return chr(code) if code > 0x7F else f"\\x{code:02x}"
