"""A vocabulary of bytes and a few longer tokens, and grammars tried on text."""

from __future__ import annotations

from functools import cache

from llguidance import LLMatcher, LLTokenizer

from octavo.contracts.structured_outputs import GrammarSource, StructuredOutputsParams
from octavo.structured.backend import compile_text
from octavo.structured.native import native_text
from octavo.structured.sources import grammar_source
from octavo.structured.vocabulary import Vocabulary
from tests.engine.fakes import EOS, ByteTokenizer

PIECES = (b'{"', b'":', b'"}', b"na", b"name", b"true", b"\xe6\x97\xa5", b"\n\n\n\n", b"  ")


@cache
def vocabulary(vocab_size: int | None = None) -> Vocabulary:
    tokenizer = ByteTokenizer(PIECES)
    size = vocab_size or tokenizer.vocab_size
    return Vocabulary.of(tokenizer, vocab_size=size, eos_token_ids=[EOS])


@cache
def ll_tokenizer() -> LLTokenizer:
    return vocabulary().tokenizer()


def matcher_of(source: GrammarSource) -> LLMatcher:
    return compile_text(ll_tokenizer(), native_text(source))


def accepts(params: StructuredOutputsParams, text: str) -> bool:
    """Whether a text, byte by byte, is one of those that the grammar describes."""
    matcher = matcher_of(grammar_source(params))
    return follows(matcher, text.encode()) and matcher.is_accepting()


def follows(matcher: LLMatcher, token_ids: bytes | list[int]) -> bool:
    return all(matcher.try_consume_tokens([i]) for i in token_ids)
