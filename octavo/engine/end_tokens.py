"""With which tokens a model's texts end, and what grammars need to know of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from octavo.errors import ModelError, shown
from octavo.structured.vocabulary import Vocabulary

if TYPE_CHECKING:
    from octavo.engine.tokenizer import Tokenizer


def vocabulary_of(
    tokenizer: Tokenizer, generation_config: Mapping[str, Any], vocab_size: int
) -> Vocabulary:
    """What grammars need to know of a model's tokens."""
    return Vocabulary.of(
        tokenizer,
        vocab_size=vocab_size,
        eos_token_ids=end_token_ids(tokenizer, generation_config, vocab_size),
    )


def end_token_ids(
    tokenizer: Tokenizer, generation_config: Mapping[str, Any], vocab_size: int
) -> list[int]:
    """End ids of tokenizer and generation config, each once, those the model can produce."""
    more = generation_config.get("eos_token_id")
    more = [] if more is None else more if isinstance(more, list) else [more]
    if any(type(i) is not int for i in more):
        raise ModelError(
            f"generation config: eos_token_id={shown(more)} must be an integer or a list of them"
        )
    return [i for i in dict.fromkeys([*tokenizer.eos_token_ids, *more]) if 0 <= i < vocab_size]
