"""The syntax of stop regexes: what `re` takes is read as `re` reads it, or refused by name."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from octavo.engine.regex_syntax import MAX_DEPTH, Chars, Group, RegexError, Repeat, parse
from octavo.engine.stop_regex import RegexMatcher
from octavo.errors import RequestError

PIECES = (
    *"abc1-]^.,: #\n",
    *("a", "b", "*", "+", "?", "{2}", "{1,2}", "{,1}", "{1,}", "{", "}", "*?", "+?", "(", ")", "|"),
    *(
        "(?:",
        "(?P<n>",
        "(?P<m>",
        "[",
        "[^",
        "a-c",
        r"\d",
        r"\W",
        r"\s",
        r"\n",
        r"\x61",
        r"\-",
        r"\]",
    ),
    *(
        r"\u0062",
        r"\141",
        r"\07",
        r"\1",
        r"\q",
        r"\8",
        r"\A",
        "^",
        "(?#no)",
        "(?=",
        "(?i:",
        "&&",
        "--",
    ),
)
PATTERNS = st.builds(
    lambda flags, pieces: flags + "".join(pieces),
    st.sampled_from(["", "", "(?i)", "(?s)", "(?x)", "(?ix)"]),
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=8),
)


def compiled(pattern: str) -> re.Pattern[str] | None:
    with warnings.catch_warnings():  # of sets within sets, which mean something else elsewhere
        warnings.simplefilter("ignore", FutureWarning)
        try:
            return re.compile(pattern)
        except (re.error, OverflowError):
            return None


@settings(max_examples=400, deadline=None)
@given(PATTERNS, st.text("abcA1 -]\n", max_size=5))
def test_as_re_reads_it(pattern: str, text: str) -> None:
    expected = compiled(pattern)
    try:
        parse(pattern)
    except RegexError as error:
        assert expected is None or "not a regular expression" not in str(error)
        return
    assert expected is not None
    try:
        matcher = RegexMatcher(pattern)
    except RequestError:  # it matches the empty text
        assume(False)
    matches = (
        (end, end - start)
        for end in range(1, len(text) + 1)
        for start in range(end)
        if expected.fullmatch(text, start, end)
    )
    assert matcher.advance(text, 0) == next(matches, None)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("a{3,2}", "min repeat greater"),
        ("a{99999999999}", "too large"),
        ("*a", "nothing to repeat"),
        ("^*", "nothing to repeat"),
        ("a{2}{3}", "multiple repeat"),
        ("[b-a]", "bad character range"),
        (r"[\d-z]", "bad character range"),
        ("[ab", "unterminated character set"),
        ("a)", "unbalanced parenthesis"),
        ("(?P<1>a)", "bad character in group name '1'"),
        ("(?P<n>a)(?P<n>b)", "redefinition"),
        ("(?#a", "unterminated comment"),
        ("(?", "unknown extension"),
        ("(?y)", "unknown flag 'y'"),
        ("a\\", "end of pattern"),
        (r"\x6", "incomplete escape"),
        (r"\U00110000", "no character"),
        (r"\777", "octal escape"),
        (r"\N{NO SUCH}", "undefined character name 'NO SUCH'"),
    ],
)
def test_what_is_wrong(pattern: str, says: str) -> None:
    assert compiled(pattern) is None
    with pytest.raises(RegexError, match=re.escape(says)):
        parse(pattern)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("a*+", "a possessive quantifier"),
        ("(?>a)", "an atomic group"),
        ("(?P<n>a)(?P=n)", "a back reference"),
        (r"(a)\1", "a back reference"),
        ("a$", "an assertion"),
        ("(?-i:a)", "sets flags"),
        ("(?a)a", "the flag (?a)"),
        ("(" * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1), "nested too deeply"),
    ],
)
def test_what_is_refused(pattern: str, says: str) -> None:
    with pytest.raises(RegexError, match=re.escape(says)) as caught:
        parse(pattern)
    assert "not a regular expression" not in str(caught.value)


def test_the_tree() -> None:
    (branch,) = parse(r"(?i)a(b|[^x\d-]{2,})").group.branches
    a, group = branch
    assert a == Chars(((97, 97),))
    assert isinstance(group, Group)
    (b,), (repeat,) = group.branches
    assert b == Chars(((98, 98),))
    assert isinstance(repeat, Repeat)
    assert (repeat.low, repeat.high) == (2, None)
    assert repeat.item == Chars(((120, 120), (45, 45)), frozenset("d"), is_negated=True)


def test_the_deepest() -> None:
    assert parse("(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH)


def test_names_of_characters() -> None:
    assert parse(r"\N{LATIN SMALL LETTER E WITH ACUTE}").group.branches == (
        (Chars(((233, 233),)),),
    )
