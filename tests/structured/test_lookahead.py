"""Look-ahead at a pattern's beginning: the same texts as Python's re takes."""

from __future__ import annotations

import json
import re

import pytest

from octavo.contracts.structured_outputs import StructuredOutputsParams
from octavo.structured.backend import GrammarError
from octavo.structured.lookahead import split_lookaheads, without_lookahead
from octavo.structured.sources import grammar_source
from tests.structured.lab import accepts, matcher_of

DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
"""pydantic's pattern of a Decimal (pydantic#13630)."""
TEXTS = ["", "1", "-", ".", "+.", "-1.5", "1.", ".5", "a1", "A1b2C3", "abc", "foo", "foobar", " ",
         "  x", "a.b", "ab)", "12345678", "Ab1", "a|b"]  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    [
        DECIMAL,
        r"^(?=.*[A-Z])(?=.*\d).{3,}$",
        r"^(?=.*\d$)[a-z0-9]+$",
        r"^(?!\s*$).+$",
        r"^(?!\s+$).*$",
        r"^(?![^a-z]*$)\S*$",
        r"^(?=[)(\]]*a)a.*$",
        r"^(?=a\)?)\w+$",
        r"^[a-z]+$",
    ],
)
def test_patterns_of_schemas(pattern: str) -> None:
    params = StructuredOutputsParams(json={"type": "string", "pattern": pattern})
    for text in TEXTS:
        assert accepts(params, json.dumps(text)) == bool(re.search(pattern, text)), text


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?!foo)[a-z]+",
        r"^(?!foo$)(?=[a-z])[a-z/]+$",
        r"^(?=.*[A-Z])(?=.*\d).{3,}\Z",
        DECIMAL,
    ],
)
def test_expressions(pattern: str) -> None:
    params = StructuredOutputsParams(regex=pattern)
    for text in TEXTS:
        assert accepts(params, text) == bool(re.fullmatch(pattern, text)), text


@pytest.mark.parametrize("pattern", ["^(?=a)b|c$", "^(?=a", "a(?=b)", "^(?:a)$", "^a$", ""])
def test_what_stays_as_it_is(pattern: str) -> None:
    assert split_lookaheads(pattern) == ([], pattern)


def test_what_no_pattern_can_say_stays_and_is_refused() -> None:
    schema = {"type": "string", "pattern": "^(?!foo).*$"}
    assert without_lookahead(schema) == schema
    with pytest.raises(GrammarError, match="look-ahead"):
        matcher_of(grammar_source(StructuredOutputsParams(json=schema)))


def test_null_is_no_condition() -> None:
    schema = {"allOf": None, "pattern": "^(?=a).*$"}
    assert without_lookahead(schema) == {"allOf": [{"pattern": "^(?:a)"}], "pattern": "^.*$"}


def test_other_conditions_stay() -> None:
    schema = {"allOf": [{"maxLength": 2}], "pattern": "^(?=a).*$", "minLength": 1}
    assert without_lookahead(schema) == {
        "allOf": [{"maxLength": 2}, {"pattern": "^(?:a)"}],
        "pattern": "^.*$",
        "minLength": 1,
    }
