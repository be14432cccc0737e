"""`SamplingParams.stop_regex`: regular expressions over text that comes in pieces.

A pattern becomes a nondeterministic automaton (Thompson, *Regular Expression Search Algorithm*,
1968), and the text is read once, character by character: time per character is bounded by the size
of the pattern, whatever pattern and text are, and where tokens cut the text does not matter. Each
state remembers where the text that leads to it begins, so that a match knows its beginning, and so
that the text which may still become one is known too.

The syntax is that of Python's `re`, as far as `regex_syntax` goes. `^` is the output's beginning.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import lru_cache

from octavo.engine.regex_syntax import Begin, Chars, Dot, Group, Node, RegexError, Repeat, parse
from octavo.errors import RequestError, shown

MAX_STATES = 2048
"""Of one pattern: about twice its length, counted repetitions written out."""

MAX_TRANSITIONS = 2048
"""Of all patterns of a request: what a character of the text can take is in proportion to them."""

_CACHE_SIZE = 64
_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "d": str.isdecimal,
    "s": str.isspace,
    "w": lambda c: c.isalnum() or c == "_",
}

Test = Callable[[str], bool]


class _State:
    """Reads one character that passes `test` and goes on to `after`; without a test it goes on
    without reading. The accepting state goes nowhere.

    Attributes:
        only_at_beginning: whether nothing may have been read yet.
        next: of a state with a test, those that can be reached by it: they have a test or accept.
    """

    __slots__ = ("after", "next", "only_at_beginning", "test")

    def __init__(self, test: Test | None = None) -> None:
        self.test = test
        self.after: list[_State] = []
        self.only_at_beginning = False
        self.next: list[_State] = []


class StopRegex:
    """A compiled pattern.

    Attributes:
        accept: the state in which a match is complete.
        num_transitions: from states that read to those that come next.
        starts: states in which a match begins; `first_starts` where nothing has been read.

    Raises:
        RequestError: it is no regular expression, uses what is not supported, or is too large.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        try:
            parsed = parse(pattern)
        except RegexError as error:
            raise _refused(pattern, str(error)) from None
        self._num_states = 0
        self._ignores_case = parsed.ignores_case
        self._dot_is_all = parsed.dot_is_all
        start = self._state()
        self._readers: list[_State] = []
        self._tests: dict[int, Test] = {}  # by the id of an item, which `parsed` keeps alive
        self.accept = self._group(parsed.group, start)
        self._tests.clear()
        self.starts = self._reachable([start])
        self.first_starts = self._reachable([start], is_beginning=True)
        if self.accept in self.first_starts:
            raise _refused(pattern, "matches the empty string, which is everywhere")
        self.num_transitions = 0
        for state in self._readers:
            state.next = self._reachable(state.after)
            self.num_transitions += len(state.next)
            if self.num_transitions > MAX_TRANSITIONS:
                raise _refused(pattern, f"is too large: more than {MAX_TRANSITIONS} transitions")

    # ---------------------------------------------------------------- building

    def _reachable(self, states: Iterable[_State], *, is_beginning: bool = False) -> list[_State]:
        """The states with a test, and the accepting one, that are reached from `states` without
        reading a character."""
        found: dict[_State, None] = {}
        todo = list(states)
        while todo:
            state = todo.pop()
            if state not in found and (is_beginning or not state.only_at_beginning):
                found[state] = None
                if state.test is None:
                    todo += state.after
        return [s for s in found if s.test is not None or s is self.accept]

    def _state(self, test: Test | None = None) -> _State:
        self._num_states += 1
        if self._num_states > MAX_STATES:
            raise _refused(self.pattern, f"is too large: more than {MAX_STATES} states")
        state = _State(test)
        if test is not None:
            self._readers.append(state)
        return state

    def _item(self, item: Node, last: _State) -> _State:
        """Append states for `item` after `last`; returns the new last one."""
        if isinstance(item, Group):
            return self._group(item, last)
        if isinstance(item, Repeat):
            return self._repeat(item, last)
        if isinstance(item, Begin):
            end = self._state()
            end.only_at_beginning = True
            last.after.append(end)
            return end
        # Copies of a repeated class share its test: it may be large, and they many.
        if id(item) not in self._tests:
            self._tests[id(item)] = self._test(item)
        state = self._state(self._tests[id(item)])
        last.after.append(state)
        end = self._state()
        state.after.append(end)
        return end

    def _group(self, group: Group, last: _State) -> _State:
        if len(group.branches) == 1:
            for item in group.branches[0]:
                last = self._item(item, last)
            return last
        end = self._state()
        for branch in group.branches:
            at = self._state()
            last.after.append(at)
            for item in branch:
                at = self._item(item, at)
            at.after.append(end)
        return end

    def _repeat(self, repeat: Repeat, last: _State) -> _State:
        if isinstance(repeat.item, Group) and repeat.item.is_empty:  # no states to be counted
            return last
        for _ in range(repeat.low):
            last = self._item(repeat.item, last)
        end = self._state()
        if repeat.high is None:
            loop = self._state()
            last.after.append(loop)
            self._item(repeat.item, loop).after.append(loop)
            loop.after.append(end)
            return end
        last.after.append(end)
        for _ in range(repeat.high - repeat.low):
            last = self._item(repeat.item, last)
            last.after.append(end)
        return end

    def _test(self, item: Chars | Dot) -> Test:
        if isinstance(item, Dot):
            return (lambda c: True) if self._dot_is_all else (lambda c: c != "\n")
        is_in, is_negated = _class_test(item), item.is_negated
        if not self._ignores_case:
            return lambda c: is_in(c) != is_negated
        return lambda c: (
            any(is_in(x) for x in {c, c.lower(), c.upper()} if len(x) == 1) != is_negated
        )


def _class_test(chars: Chars) -> Test:
    """Whether a character is in a class, negation apart. A class of 900 characters may stand in
    each of a thousand states: so it is looked up in sorted ranges, not compared with each."""
    starts: list[int] = []
    ends: list[int] = []
    for low, high in sorted(chars.ranges):
        if ends and low <= ends[-1] + 1:
            ends[-1] = max(ends[-1], high)
        else:
            starts.append(low)
            ends.append(high)

    def is_in_ranges(char: str) -> bool:
        place = bisect_right(starts, ord(char))
        return place > 0 and ord(char) <= ends[place - 1]

    tests = [is_in_ranges, *map(_category_test, sorted(chars.categories))]
    return tests[0] if len(tests) == 1 else lambda c: any(test(c) for test in tests)


def _category_test(letter: str) -> Test:
    positive = _CATEGORIES[letter.lower()]
    is_negated = letter.isupper()
    return lambda c: positive(c) != is_negated


class RegexMatcher:
    """One pattern on its way through a text.

    Attributes:
        name: the pattern.
        num_held: length of the longest end of the text that may be a part of a match to come.
    """

    def __init__(self, pattern: str) -> None:
        self._regex = _compiled(pattern)
        self._threads: dict[_State, int] = {}  # states that read next → where their match begins
        self._position = 0
        self.name = pattern
        self.num_held = 0

    def advance(self, text: str, start: int) -> tuple[int, int] | None:
        """Read `text` from `start`. Returns the index after the first character that completes a
        match and the length of the longest match that ends there, or None."""
        regex = self._regex
        for i in range(start, len(text)):
            char, threads = text[i], self._threads
            for state in regex.starts if self._position else regex.first_starts:
                threads.setdefault(state, self._position)
            self._position += 1
            moved: dict[_State, int] = {}
            for state, begin in threads.items():
                if state.test is not None and state.test(char):
                    for after in state.next:
                        if moved.get(after, begin) >= begin:
                            moved[after] = begin
            begin_of_match = moved.pop(regex.accept, None)
            self._threads = moved
            if begin_of_match is not None:
                self._count_held()
                return i + 1, self._position - begin_of_match
        self._count_held()
        return None

    def _count_held(self) -> None:
        self.num_held = self._position - min(self._threads.values(), default=self._position)


def check_stop_regexes(patterns: Iterable[str]) -> None:
    """Raise RequestError for one that cannot be used, or for all of them being too large."""
    num_transitions = 0
    for pattern in patterns:
        num_transitions += _compiled(pattern).num_transitions
        if num_transitions > MAX_TRANSITIONS:
            raise _refused(
                pattern,
                f"and those before it are too large: more than {MAX_TRANSITIONS} transitions",
            )


@lru_cache(maxsize=_CACHE_SIZE)
def _compiled(pattern: str) -> StopRegex:
    return StopRegex(pattern)


def _refused(pattern: str, why: str) -> RequestError:
    return RequestError(f"stop_regex {shown(pattern)} {why}", param="stop_regex")
