"""The syntax of regular expressions as Python's `re` reads it, as far as an automaton can follow
that reads a text once, from left to right.

What that cannot decide at once is refused by name: assertions about what comes next or came before
(lookaround, `$`, `\\b`), back references, conditional, possessive and atomic groups; and so are
flags other than i, s, u and x for the whole expression.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

MAX_DEPTH = 100
"""Of groups within each other."""
_MAX_COUNT = 2**32 - 2  # `re` takes no larger one
_SPACE = " \t\n\r\v\f"
_ESCAPES = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_NUM_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_OCTAL = frozenset("01234567")
_DIGITS = frozenset("0123456789")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_ASSERTION = "an assertion such as $ or \\b"


class RegexError(Exception):
    """A pattern cannot be used. The text goes on after "the pattern"."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a class.

    Attributes:
        ranges: first and last code point of each.
        categories: letters of `\\d`, `\\s`, `\\w` and their opposites.
        is_negated: whether it is one that is in none of them.
    """

    ranges: tuple[tuple[int, int], ...]
    categories: frozenset[str] = frozenset()
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """One character; a new line only with the flag s."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Nothing, at the beginning of the text."""


@dataclass(frozen=True, slots=True)
class Group:
    """One of the branches, each a sequence."""

    branches: tuple[tuple[Node, ...], ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it but groups of nothing."""
        return all(isinstance(i, Group) and i.is_empty for branch in self.branches for i in branch)


@dataclass(frozen=True, slots=True)
class Repeat:
    """An item so many times; without end where `high` is None."""

    item: Node
    low: int
    high: int | None


Node = Chars | Dot | Begin | Group | Repeat


@dataclass(frozen=True, slots=True)
class Parsed:
    """A whole pattern."""

    group: Group
    ignores_case: bool
    dot_is_all: bool


def parse(pattern: str) -> Parsed:
    """Read a pattern.

    Raises:
        RegexError: it is no regular expression, or uses what is not supported.
    """
    return _Parser(pattern).parse()


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._index = 0
        self._depth = 0
        self._flags: set[str] = set()
        self._names: set[str] = set()

    def parse(self) -> Parsed:
        while self._pattern.startswith("(?", self._index) and self._flags_ahead():
            self._index = self._pattern.index(")", self._index) + 1
        group = self._group()
        if self._index < len(self._pattern):
            raise self._wrong("unbalanced parenthesis")
        return Parsed(group, "i" in self._flags, "s" in self._flags)

    def _flags_ahead(self) -> bool:
        """Whether flags of the whole expression come next; they are noted."""
        end = self._pattern.find(")", self._index)
        letters = self._pattern[self._index + 2 : end]
        if end < 0 or not letters or not set(letters) <= _LETTERS:
            return False
        for letter in letters:
            if letter in "amL":
                raise RegexError(f"uses the flag (?{letter}), which is not supported")
            if letter not in "isux":
                raise self._wrong(f"unknown flag {letter!r}")
        self._flags.update(letters)
        return True

    # ---------------------------------------------------------------- sequences

    def _group(self) -> Group:
        """Branches up to the end of the pattern or of the group."""
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        return Group(tuple(branches))

    def _sequence(self) -> tuple[Node, ...]:
        items: list[Node] = []
        while self._index < len(self._pattern) and self._pattern[self._index] not in "|)":
            char = self._next()
            if "x" in self._flags and char in _SPACE:
                continue
            if "x" in self._flags and char == "#":
                end = self._pattern.find("\n", self._index)
                self._index = len(self._pattern) if end < 0 else end
            elif char in "*+?" or (char == "{" and self._counts_ahead() is not None):
                items.append(self._repeated(char, items.pop() if items else None))
            elif (item := self._item(char)) is not None:
                items.append(item)
        return tuple(items)

    def _item(self, char: str) -> Node | None:
        """What a character begins; None for a comment."""
        if char == ".":
            return Dot()
        if char == "^":
            return Begin()
        if char == "$":
            raise _refused(_ASSERTION)
        if char == "[":
            return self._class()
        if char == "(":
            return self._parenthesis()
        if char == "\\":
            return self._escape()
        return _literal(ord(char))

    def _parenthesis(self) -> Group | None:
        """What follows "("; None for a comment."""
        if self._take("?#"):
            if not self._skip_to(")"):
                raise self._wrong("missing ), unterminated comment")
            return None
        if self._take("?P<"):
            self._name()
        elif self._take("?"):
            self._extension()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise RegexError(f"is nested too deeply: more than {MAX_DEPTH} groups")
        group = self._group()
        if not self._take(")"):
            raise self._wrong("missing ), unterminated subpattern")
        self._depth -= 1
        return group

    def _name(self) -> None:
        start = self._index
        if not self._skip_to(">"):
            raise self._wrong("missing >, unterminated name")
        name = self._pattern[start : self._index - 1]
        if not name.isidentifier():
            raise self._wrong(f"bad character in group name {name!r}")
        if name in self._names:
            raise self._wrong(f"redefinition of group name {name!r}")
        self._names.add(name)

    def _extension(self) -> None:
        """What follows "(?": nothing but ":" is supported."""
        for spelling, name in (
            (("=", "<="), "lookahead or lookbehind"),
            (("!", "<!"), "negative lookahead or lookbehind"),
            (("P=",), "a back reference"),
            (("(",), "a conditional group"),
            ((">",), "an atomic group"),
        ):
            if self._pattern.startswith(spelling, self._index):
                raise _refused(name)
        if self._take(":"):
            return
        if self._pattern[self._index : self._index + 1] in {*"aiLmsux-"}:
            raise RegexError("sets flags for a group or amid the pattern, which is not supported")
        raise self._wrong("unknown extension after (?")

    # ---------------------------------------------------------------- repetitions

    def _counts_ahead(self) -> tuple[int, int | None, int] | None:
        """{m}, {m,}, {,n}, {m,n} after their "{": least, most, and where they end; None where it is
        but a brace."""
        end = self._pattern.find("}", self._index)
        low, comma, high = self._pattern[self._index : max(end, self._index)].partition(",")
        if end < 0 or not (low or comma) or not set(low + high) <= _DIGITS:
            return None
        least = int(low or "0")
        most = (int(high) if high else None) if comma else least
        if max(least, most or 0) > _MAX_COUNT:
            raise self._wrong("the repetition number is too large")
        if most is not None and most < least:
            raise self._wrong("min repeat greater than max repeat")
        return least, most, end + 1

    def _repeated(self, char: str, item: Node | None) -> Repeat:
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char, (0, 0))
        if char == "{":
            counts = self._counts_ahead()
            assert counts is not None
            least, most, self._index = counts
        if item is None or isinstance(item, Begin):
            raise self._wrong("nothing to repeat")
        if isinstance(item, Repeat):
            raise self._wrong("multiple repeat")
        if self._take("+"):
            raise _refused("a possessive quantifier")
        self._take("?")  # what ends first ends it: greedy or not is the same
        return Repeat(item, least, most)

    # ---------------------------------------------------------------- characters

    def _class(self) -> Chars:
        is_negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        categories: set[str] = set()
        start = self._index
        while not (self._index > start and self._take("]")):
            low = self._class_member()
            if not self._pattern.startswith("-", self._index) or self._pattern.startswith(
                "-]", self._index
            ):
                if isinstance(low, int):
                    ranges.append((low, low))
                else:
                    categories.add(low)
                continue
            self._index += 1
            high = self._class_member()
            if not isinstance(low, int) or not isinstance(high, int) or high < low:
                raise self._wrong("bad character range in a class")
            ranges.append((low, high))
        return Chars(tuple(ranges), frozenset(categories), is_negated)

    def _class_member(self) -> int | str:
        """A code point, or the letter of a category."""
        if self._index == len(self._pattern):
            raise self._wrong("unterminated character set")
        char = self._next()
        if char != "\\":
            return ord(char)
        letter = self._escaped()
        if letter == "b":
            return ord("\b")
        return letter if letter in "dDsSwW" else self._code_point(letter, in_class=True)

    def _escape(self) -> Node:
        """What follows a backslash outside of classes."""
        letter = self._escaped()
        if letter == "A":
            return Begin()
        if letter in "bBZ":
            raise _refused(_ASSERTION)
        if letter in "dDsSwW":
            return Chars((), frozenset(letter))
        return _literal(self._code_point(letter, in_class=False))

    def _escaped(self) -> str:
        if self._index == len(self._pattern):
            raise self._wrong("bad escape (end of pattern)")
        return self._next()

    def _code_point(self, letter: str, *, in_class: bool) -> int:
        """The character that an escape is, its letter read already."""
        if letter in _ESCAPES:
            return ord(_ESCAPES[letter])
        if letter in _NUM_HEX_DIGITS:
            digits = self._pattern[self._index : self._index + _NUM_HEX_DIGITS[letter]]
            self._index += len(digits)
            return self._from_digits(digits, 16, _NUM_HEX_DIGITS[letter])
        if letter == "N":
            return self._named()
        if letter in _DIGITS:
            return self._octal(letter, in_class=in_class)
        if letter in _LETTERS:
            raise self._wrong(f"bad escape \\{letter}")
        return ord(letter)

    def _octal(self, digit: str, *, in_class: bool) -> int:
        """Up to three octal digits; outside of classes three of them, or a zero first, or else it
        is the number of a group."""
        digits = digit
        while len(digits) < 3 and self._pattern[self._index : self._index + 1] in _OCTAL:
            digits += self._next()
        if not set(digits) <= _OCTAL:
            if in_class:
                raise self._wrong(f"bad escape \\{digit}")
            raise _refused("a back reference")
        if not in_class and digit != "0" and len(digits) < 3:
            raise _refused("a back reference")
        code_point = int(digits, 8)
        if code_point > 0o377:
            raise self._wrong(f"octal escape value \\{digits} outside of range 0-0o377")
        return code_point

    def _named(self) -> int:
        start = self._index
        if not self._take("{") or not self._skip_to("}"):
            raise self._wrong("missing { or } of a character's name")
        name = self._pattern[start + 1 : self._index - 1]
        try:
            return ord(unicodedata.lookup(name))
        except (KeyError, TypeError):  # a name may be that of several characters
            raise self._wrong(f"undefined character name {name!r}") from None

    def _from_digits(self, digits: str, base: int, count: int) -> int:
        if len(digits) < count or not all(c in "0123456789abcdefABCDEF" for c in digits):
            raise self._wrong(f"incomplete escape of {count} digits")
        code_point = int(digits, base)
        if code_point > 0x10FFFF:
            raise self._wrong(f"bad escape: {digits} is no character")
        return code_point

    # ---------------------------------------------------------------- reading

    def _next(self) -> str:
        self._index += 1
        return self._pattern[self._index - 1]

    def _take(self, text: str) -> bool:
        """Read a text, if it comes next."""
        if not self._pattern.startswith(text, self._index):
            return False
        self._index += len(text)
        return True

    def _skip_to(self, char: str) -> bool:
        """Read up to a character and it too, if it comes."""
        end = self._pattern.find(char, self._index)
        self._index = end + 1
        return end >= 0

    def _wrong(self, why: str) -> RegexError:
        return RegexError(f"is not a regular expression: {why}, near character {self._index}")


def _refused(what: str) -> RegexError:
    return RegexError(f"uses {what}, which is not supported")


def _literal(code_point: int) -> Chars:
    return Chars(((code_point, code_point),))
