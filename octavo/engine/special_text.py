"""Special tokens as they are spelled, and text that must never become one.

A chat prompt is rendered as one string, in which a special token that the template wrote and the
same spelling in a user's message look alike. So:

1. Before rendering, the spellings in messages are *marked*: one character of each is replaced by a
   private-use character that occurs nowhere in the request (`SpecialText.marker`).
2. After rendering, what still spells a special token is the template's. Each is replaced by an
   *anchor*, a token that a second tokenizer knows under a secret name; the marks are undone; and
   that second tokenizer, which parses no special tokens, encodes the whole (`SpecialText.encode`).

Encoding the whole in one go keeps the joins between template and message as the model knows them.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tokenizers import AddedToken, Tokenizer

from octavo.errors import RequestError, TokenizerError

_PRIVATE_USE = range(0xF0000, 0xFFFFE)
_IN_PRIVATE_USE = re.compile(f"[{chr(_PRIVATE_USE[0])}-{chr(_PRIVATE_USE[-1])}]")
_SPACES = re.compile(r"\s*")


@dataclass(frozen=True)
class Marker:
    """Replaces characters by private-use stand-ins, and back.

    Attributes:
        end: one more private-use character, for the caller's own use.
    """

    spellings: SpecialText
    stand_ins: Mapping[str, str]
    end: str
    _undo: Mapping[int, str] = field(init=False)

    def __post_init__(self) -> None:
        undo = {ord(mark): char for char, mark in self.stand_ins.items()}
        object.__setattr__(self, "_undo", undo)

    def mark(self, text: str) -> str:
        """`text` in such a form that no special token can be read in it, nor across its ends."""
        positions = self.spellings.positions_to_mark(text)
        if not positions:
            return text
        chars = list(text)
        for i in positions:
            chars[i] = self.stand_ins[chars[i]]
        return "".join(chars)

    def unmark(self, text: str) -> str:
        """The original characters."""
        return text.translate(self._undo)


class SpecialText:
    """The special tokens of a tokenizer.

    Args:
        tokenizer: parses special tokens. It is not changed.

    Raises:
        TokenizerError: its added tokens have no consistent ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self._special = {t.content: (i, t) for i, t in added.items() if t.special and t.content}
        self._pattern = re.compile(_trie_pattern(self._special)) if self._special else None
        self._starts = re.compile(f"(?={_trie_pattern(self._special)})") if self._special else None
        words = [w for w in self._special if len(w) > 1]
        self._heads = {p for w in words for n in range(1, len(w)) if not (p := w[:n]).isalnum()}
        self._tails = {p for w in words for n in range(1, len(w)) if not (p := w[n:]).isalnum()}
        self._longest = max(map(len, self._special), default=0)
        self._alphabet = sorted({c for word in self._special for c in word})
        self._anchor = f"<octavo-{secrets.token_hex(16)}>"
        self._plain = _plain_twin(tokenizer, added)
        self._plain.add_tokens([AddedToken(self._anchor, normalized=False)])
        self._anchor_id = self._plain.token_to_id(self._anchor)

    @property
    def ids(self) -> frozenset[int]:
        """Ids of all special tokens."""
        return frozenset(i for i, _ in self._special.values())

    def encode_plain(self, text: str) -> list[int]:
        """Ids of `text`, in which spellings of special tokens are text like any other."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def marker(self, texts: Iterable[str]) -> Marker:
        """A marker whose stand-ins occur in none of `texts`. Raises RequestError."""
        used = {c for text in texts for c in _IN_PRIVATE_USE.findall(text)}
        free = (c for code in _PRIVATE_USE if (c := chr(code)) not in used)
        needed = [*self._alphabet, "end"]
        stand_ins = dict(zip(needed, free))
        if len(stand_ins) < len(needed):
            raise RequestError("the messages use up all private-use characters of plane 15")
        return Marker(self, stand_ins, end=stand_ins.pop("end"))

    def positions_to_mark(self, text: str) -> set[int]:
        """Characters to replace: the first of each spelling, and those at the ends of `text`
        (spaces aside) that could complete one together with what a template puts beside it."""
        if self._pattern is None or self._starts is None:
            return set()
        positions: set[int] = set()
        if self._pattern.search(text):  # the fast way to find that there are none
            positions = {match.start() for match in self._starts.finditer(text)}
        first = _SPACES.match(text).end()  # type: ignore[union-attr]
        last = len(text.rstrip())
        longest = min(self._longest, len(text) - first + 1)
        if any(text[first : first + n] in self._tails for n in range(1, longest)):
            positions.add(first)
        longest = min(self._longest, last - first + 1)
        if any(text[last - n : last] in self._heads for n in range(1, longest)):
            positions.add(last - 1)
        return positions

    def encode(self, rendered: str, marker: Marker) -> list[int]:
        """Ids of a rendered prompt: spellings in it are special tokens, marked ones are not."""
        pieces, special_ids = self._cut(rendered)
        text = self._anchor.join(marker.unmark(piece) for piece in pieces)
        ids = iter(special_ids)
        return [next(ids) if i == self._anchor_id else i for i in self.encode_plain(text)]

    def _cut(self, text: str) -> tuple[list[str], list[int]]:
        """n + 1 pieces of text, and the ids of the n special tokens between them."""
        pieces: list[str] = []
        ids: list[int] = []
        start = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            token_id, token = self._special[match.group()]
            if match.start() < start or (token.single_word and _touches_word(text, match)):
                continue
            piece = text[start : match.start()]
            pieces.append(piece.rstrip() if token.lstrip else piece)
            ids.append(token_id)
            start = match.end()
            if token.rstrip:
                start = _SPACES.match(text, start).end()  # type: ignore[union-attr]
        pieces.append(text[start:])
        return pieces, ids


def _plain_twin(tokenizer: Tokenizer, added: Mapping[int, AddedToken]) -> Tokenizer:
    """A tokenizer that shares the model of another but takes special tokens for text."""
    twin = Tokenizer(tokenizer.model)
    for part in ("normalizer", "pre_tokenizer"):
        if (value := getattr(tokenizer, part)) is not None:
            setattr(twin, part, value)
    twin.add_tokens([added[i] for i in sorted(added)])
    if twin.get_added_tokens_decoder().keys() != added.keys():
        raise TokenizerError("the tokenizer's added tokens have no consistent ids")
    twin.encode_special_tokens = True
    return twin


def _touches_word(text: str, match: re.Match[str]) -> bool:
    around = text[max(0, match.start() - 1) : match.start()] + text[match.end() : match.end() + 1]
    return any(c.isalnum() or c == "_" for c in around)


def _trie_pattern(words: Iterable[str]) -> str:
    """A pattern that matches the longest of `words` at a position. As a trie, because thousands of
    plain alternatives (Gemma has 6,249 special tokens) are tried one by one at each position."""
    trie: dict[str, dict] = {}
    for word in words:
        node = trie
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}
    return _branches(trie)


def _branches(node: dict[str, dict]) -> str:
    prefix = ""
    while len(node) == 1 and "" not in node:  # no branch: one literal run
        ((char, node),) = node.items()
        prefix += re.escape(char)
    ways = [re.escape(char) + _branches(child) for char, child in sorted(node.items()) if char]
    if not ways:
        return prefix
    return f"{prefix}(?:{'|'.join(ways)}){'?' if '' in node else ''}"
