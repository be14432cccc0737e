"""Stop regexes: as Python's `re` reads them, wherever the text is cut, in bounded time."""

from __future__ import annotations

import re
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.sampling_params import SamplingParams
from octavo.engine.detokenizer import Detokenizer
from octavo.engine.stop_regex import MAX_STATES, RegexMatcher, StopRegex, check_stop_regexes
from octavo.errors import RequestError
from tests.engine.fakes import ByteTokenizer

PATTERNS = (
    *("a+b", "ab|abc|bc", "a[bc]{2}", "(?i)A.c", "^ab", "[^a]c", "a{2,3}?b", "(a|b)*c", r"\d\s\w"),
    *("[bac-]x?1", r"[^a-c\d\n]+X", r"(?i)[^\Wa-b]c"),
    *("(?s)a.c", "b|(ab)+c", "a?b?c", r"\W+b", "(?:a|ba){2}", "é|b", r"[\d\-x]a", "(x)|aab"),
)
TEXTS = st.text("abc1 é\nX-", max_size=24)


def first_match(pattern: str, text: str) -> tuple[int, int] | None:
    """(end, length) by the definition: the first end of any match, the longest that ends there."""
    compiled = re.compile(pattern)
    for end in range(1, len(text) + 1):
        for start in range(end):
            if compiled.fullmatch(text, start, end) and not (pattern[0] == "^" and start):
                return end, end - start
    return None


@given(st.sampled_from(PATTERNS), TEXTS)
def test_as_python_reads_it(pattern: str, text: str) -> None:
    assert RegexMatcher(pattern).advance(text, 0) == first_match(pattern, text)


@given(st.sampled_from(PATTERNS), TEXTS, st.lists(st.integers(1, 4), min_size=60, max_size=60))
def test_the_text_ends_before_the_match_wherever_it_is_cut(
    pattern: str, text: str, sizes: list[int]
) -> None:
    """At every cut; what was shown is never taken back, and nothing is withheld for ever."""
    found = first_match(pattern, text)
    end, length = found or (len(text), 0)
    for keep in (False, True):
        params = SamplingParams(stop_regex=pattern, include_stop_str_in_output=keep)
        detokenizer = Detokenizer(ByteTokenizer(), params)  # type: ignore[arg-type]
        data, shown, start, stop = text.encode(), "", 0, None
        for size in sizes:
            piece = detokenizer.push(data[start : start + size])
            shown += piece.text
            start += size
            if piece.stop is not None:
                stop = piece.stop
                break
            assert text.startswith(shown)
        if stop is None:
            shown += detokenizer.push((), finished=True).text
        assert stop == (pattern if found else None)
        assert shown == text[: end if keep else end - length]


def test_with_stop_strings_and_several_regexes() -> None:
    """The first character that completes any of them; of those that end there the longest."""
    for stop, regexes, text, shown, which in (
        (["cd"], ["b.d"], "abcde", "a", "b.d"),
        (["bcd"], ["cd", "d"], "abcde", "a", "bcd"),
        (["e"], ["[c-d]"], "abcde", "ab", "[c-d]"),
        ([], ["x+", "y"], "axxy", "a", "x+"),
    ):
        params = SamplingParams(stop=stop, stop_regex=regexes)
        piece = Detokenizer(ByteTokenizer(), params).push(text.encode())  # type: ignore[arg-type]
        assert (piece.text, piece.stop) == (shown, which)


def test_within_min_tokens_it_is_text() -> None:
    params = SamplingParams(stop_regex="b+", min_tokens=3)
    piece = Detokenizer(ByteTokenizer(), params).push(b"abbbbc")  # type: ignore[arg-type]
    assert (piece.text, piece.num_tokens, piece.stop) == ("a", 4, "b+")  # the longest: "bbb"


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("(", "is not a regular expression: missing )"),
        ("a**", "is not a regular expression: multiple repeat"),
        ("a(?=b)", "uses lookahead or lookbehind, which is not supported"),
        ("(?<!a)b", "uses negative lookahead or lookbehind"),
        (r"\bfoo", "uses an assertion such as $ or \\b"),
        ("foo$", "uses an assertion such as $ or \\b"),
        (r"(a)\1", "uses a back reference"),
        ("(a)?(?(1)b|c)", "uses a conditional group"),
        ("(?m)^a", "uses the flag (?m)"),
        ("(?i:a)b", "sets flags for a group"),
        ("a*", "matches the empty string"),
        ("^", "matches the empty string"),
        ("(a{1000}){1000}", f"is too large: more than {MAX_STATES} states"),
        ("a?" * 200 + "b", "is too large: more than 2048 transitions"),
        ("(" * 2000 + "a" + ")" * 2000, "is nested too deeply"),
    ],
)
def test_refused(pattern: str, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_stop_regexes([pattern])
    assert says in str(caught.value)
    assert caught.value.param == "stop_regex"


@pytest.mark.parametrize("empty", ["()", "(?:)", "((()))", "(?:()(?:()))"])
@pytest.mark.parametrize("count", ["{4000000000}", "{0,4000000000}", "{7,}", "*?"])
def test_repeating_nothing_takes_no_time(empty: str, count: str) -> None:
    assert RegexMatcher(f"a{empty}{count}b").advance("xab", 0) == (3, 2)


def test_what_stands_between_two_of_a_class_is_not_in_it() -> None:
    assert RegexMatcher("[ac]").advance("b", 0) is None
    assert RegexMatcher("[ac]").advance("bc", 0) == (2, 1)


def test_a_large_class_costs_no_more_than_a_small_one() -> None:
    """Each of 900 states looks at every character."""
    took = []
    for size in (1, 900):
        others = "".join(chr(0x4E00 + 2 * i) for i in range(size))
        matcher = RegexMatcher(f"[{others}a]{{1,900}}Z")
        start = time.perf_counter()
        assert matcher.advance("a" * 900, 0) is None
        took.append(time.perf_counter() - start)
    assert took[1] < 20 * took[0]


def test_memory_is_bounded() -> None:
    """Compiled patterns are kept; a large class in each of many states is there once."""
    letters = "".join(chr(0x4E00 + 2 * i) for i in range(900))
    tracemalloc.start()
    try:
        kept = StopRegex(f"[{letters}]{{1,900}}Z")
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()
    assert kept.num_transitions > 900


def test_several_are_bounded_together() -> None:
    check_stop_regexes(["x.{0,300}y", "z.{0,300}y"])
    with pytest.raises(RequestError, match="those before it are too large"):
        check_stop_regexes(["x.{0,300}y", "z.{0,300}y", "u.{0,300}v", "w.{0,300}v"])


@pytest.mark.parametrize(
    ("pattern", "char"),
    [("(a+)+b", "a"), ("(a|aa)+c", "a"), ("x.{0,900}y", "x"), ("(a?){60}b", "a"), ("(.*)*z", "a")],
)
def test_time_is_linear_in_the_text(pattern: str, char: str) -> None:
    """What makes a backtracking engine hang: ten times the text takes about ten times as long."""
    took = []
    for count in (300, 3000):
        matcher = RegexMatcher(pattern)
        start = time.perf_counter()
        assert matcher.advance(char * count, 0) is None
        took.append(time.perf_counter() - start)
        assert matcher.num_held <= count
    assert took[1] < 100 * took[0]
