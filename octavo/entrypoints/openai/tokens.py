"""How tokens are spelled in logprobs.

A token that is a part of a character has no text of its own. Chat spells its bytes as "\\xf0\\x9f"
and completions as "bytes:\\xf0\\x9f", as OpenAI does, so that different tokens stay different.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from octavo.engine.tokenizer import Tokenizer

_CACHE_SIZE = 16384


class Spelling(NamedTuple):
    """One token: its bytes, and its text where they are whole characters."""

    data: bytes
    text: str | None

    @property
    def chat(self) -> str:
        """For chat's `token`."""
        return _escape(self.data) if self.text is None else self.text

    @property
    def completion(self) -> str:
        """For the completions' `tokens`."""
        return "bytes:" + _escape(self.data) if self.text is None else self.text


class TokenTable:
    """Spellings of a tokenizer's tokens, the last used ones remembered."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._special = tokenizer.all_special_ids
        token_bytes = tokenizer.token_bytes

        @lru_cache(maxsize=_CACHE_SIZE)
        def spell(token_id: int) -> Spelling:
            data = token_bytes(token_id)
            try:
                return Spelling(data, data.decode("utf-8"))
            except UnicodeDecodeError:
                return Spelling(data, None)

        self.spell = spell
        self._tokenizer = tokenizer

    def offsets(self, *, skip_special_tokens: bool, start: int = 0) -> TextOffsets:
        """A running count of characters, for `text_offset`."""
        return TextOffsets(self, self._special if skip_special_tokens else frozenset(), start)


class TextOffsets:
    """Where tokens begin in a text, in characters; a cut character counts with its last part."""

    def __init__(self, table: TokenTable, hidden: frozenset[int], start: int) -> None:
        self._table = table
        self._hidden = hidden
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._position = start

    def advance(self, token_ids: Iterable[int]) -> list[int]:
        """Offsets of the next tokens."""
        offsets = []
        for token_id in token_ids:
            offsets.append(self._position)
            if token_id not in self._hidden:
                self._position += len(self._decoder.decode(self._table.spell(token_id).data))
        return offsets


def _escape(data: bytes) -> str:
    return "".join(f"\\x{b:02x}" for b in data)
