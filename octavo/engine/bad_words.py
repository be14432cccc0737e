"""`SamplingParams.bad_words` as token ids."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from octavo.contracts.sampling_limits import MAX_BAD_WORDS, MAX_BAD_WORDS_TOKENS
from octavo.errors import RequestError

if TYPE_CHECKING:
    from octavo.engine.tokenizer import Tokenizer

_MAX_SPELLINGS = 2  # of a word: without a space before it, and with one


def encode_bad_words(
    words: Sequence[str], tokenizer: Tokenizer, vocab_size: int
) -> list[list[int]]:
    """The token ids of every spelling of every word: without and with a space before it. (vLLM
    leaves the second out where it has another number of tokens.) White space alone has one.

    Args:
        vocab_size: of the model; spellings with ids that it cannot produce are left out.

    Raises:
        RequestError: there are more than MAX_BAD_WORDS_TOKENS tokens.
    """
    spellings: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        for text in (bare, f" {bare}") if bare else (word,):
            ids = tuple(tokenizer.encode(text, add_special_tokens=False))
            if ids and max(ids) < vocab_size:
                spellings[ids] = None
        check_bad_words(spellings)
    return [list(ids) for ids in spellings]


def check_bad_words(spellings: Collection[Sequence[int]]) -> None:
    """Refuse more than can be looked for at every token. Raises RequestError."""
    num_tokens = sum(map(len, spellings))
    if num_tokens > _MAX_SPELLINGS * MAX_BAD_WORDS_TOKENS:
        raise RequestError(
            f"bad_words have more than {MAX_BAD_WORDS_TOKENS} tokens; give fewer or shorter ones",
            param="bad_words",
        )
    if len(spellings) > _MAX_SPELLINGS * MAX_BAD_WORDS or not all(spellings):
        raise RequestError(
            f"bad_words_token_ids must be at most {_MAX_SPELLINGS * MAX_BAD_WORDS} lists, none of "
            "them empty",
            param="bad_words",
        )
