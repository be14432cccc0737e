"""Texts in several languages to the one that llguidance reads."""

from __future__ import annotations

import pytest

from octavo.contracts.structured_outputs import GrammarKind, GrammarSource
from octavo.structured.backend import GrammarError
from octavo.structured.native import native_text
from tests.structured.lab import follows, matcher_of


def accepts(source: GrammarSource, text: str) -> bool:
    matcher = matcher_of(source)
    return follows(matcher, text.encode()) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= "a" # one\n  | "b"\n\n\t| "c"\n', ["a", "b", "c"], ["ab"]),
        ('root ::= "#|" |\n  "b" # "x"', ["#|", "b"], ["x"]),
        ('root ::= "\\u00e9\\x41" "\\U0001F600"', ["éA😀"], ["A"]),
        ('root ::= [\\x41-\\x43\\u4e00-\\u9fff]+', ["AB日"], ["D"]),
        ('root ::= "\\u2028" [\\u0080-\\u00ff]', ["\u2028\x85", "\u2028é"], ["x"]),
        ('root ::= [^\\-<"]+ "\\n"', ["ab\n"], ["a-\n", '"\n']),
        ('root ::= "\\x22" [a\\]]+', ['"a]'], ["a"]),
        ('root ::= my-rule\nmy-rule ::= "x" my-rule | "y"', ["xxy"], ["x"]),
        ('start ::= "a"\nroot ::= start', ["a"], []),
        ('root ::= "a" (root | "b" root)*', ["aba"], [""]),
        ('root ::= "a" more{0,2}\nmore ::= "b" more | ""', ["a", "abb"], ["b"]),
        ('start: "a::=b"', ["a::=b"], ["a"]),
    ],
)  # fmt: skip
def test_gbnf(grammar: str, good: list[str], bad: list[str]) -> None:
    """llama.cpp#25156, #27597: alternatives that begin a line, escapes in classes."""
    source = GrammarSource("gbnf", grammar)
    assert all(accepts(source, text) for text in good)
    assert not any(accepts(source, text) for text in bad)


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ("a/b", ["a/b"], ["ab"]),
        ("a\\/b", ["a/b"], []),
        ("a\nb", ["a\nb"], ["ab"]),
        ("a\\\\", ["a\\"], ["a"]),
        ("[/\\\\]", ["/", "\\"], [""]),
    ],
)
def test_regex(text: str, good: list[str], bad: list[str]) -> None:
    source = GrammarSource("regex", text)
    assert all(accepts(source, text) for text in good)
    assert not any(accepts(source, text) for text in bad)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("regex", "\\", "ends with a backslash"),
        ("regex", "a\\\\\\", "ends with a backslash"),
        ("gbnf", "root ::= (", "Expected"),
        ("gbnf", 'start ::= "a"', "No 'root' rule"),
        ("gbnf", 'root ::= "\\U00110000"', "range"),
        ("gbnf", 'root ::= "a" root', "no text of the grammar ends"),
        ("gbnf", 'root ::= "a" (b | c)+\nb ::= c "x"\nc ::= root', "no text of the grammar ends"),
        ("json", '{"$ref": "#"}', "no finite value"),
    ],
)
def test_wrong(kind: GrammarKind, text: str, says: str) -> None:
    with pytest.raises(GrammarError, match=says):
        native_text(GrammarSource(kind, text))


@pytest.mark.parametrize(
    ("kind", "text", "body"),
    [
        ("json", '{"type": "integer"}', "5"),
        ("regex", "ab?", "a"),
        ("lark", 'start: "x"', "x"),
        ("gbnf", 'root ::= "x"', "x"),
    ],
)
def test_what_comes_first(kind: GrammarKind, text: str, body: str) -> None:
    source = GrammarSource(kind, text, prefix='prefix: "<" /[a-z]*/ ">"')
    assert accepts(source, f"<abc>{body}")
    assert not accepts(source, body)
