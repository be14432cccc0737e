"""A model's tokens, as llguidance is to know them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from octavo.contracts.structured_outputs import GrammarSource
from octavo.structured.vocabulary import Vocabulary, sparse_tokenizer
from tests.engine.fakes import EOS, IM_END, SPECIALS, ByteTokenizer
from tests.structured.lab import PIECES, follows, ll_tokenizer, matcher_of, vocabulary


def allowed(matcher: LLMatcher) -> set[int]:
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    return set(np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist())


class _Spacing(ByteTokenizer):
    """Puts a space before every text, as SentencePiece does."""

    def encode_plain(self, text: str) -> list[int]:
        return [32, *super().encode_plain(text)]


def test_specials_are_no_text() -> None:
    matcher = matcher_of(GrammarSource("regex", r"(.|\n)*"))
    assert allowed(matcher) & set(SPECIALS.values()) == {EOS}
    assert allowed(matcher) >= set(range(32, 127))
    assert follows(matcher, b"<|im_end|>")  # its spelling is


def test_a_grammar_may_name_a_special_token() -> None:
    matcher = matcher_of(GrammarSource("lark", 'start: "a" <|im_end|>'))
    assert follows(matcher, b"a")
    assert allowed(matcher) == {IM_END}


def test_ids_beyond_the_tokenizer_are_never_allowed() -> None:
    wide = vocabulary(ByteTokenizer(PIECES).vocab_size + 70)
    matcher = LLMatcher(wide.tokenizer(), LLMatcher.grammar_from_regex(r"(.|\n)*"))
    assert max(allowed(matcher)) < ByteTokenizer(PIECES).vocab_size


def test_all_ends_are_allowed_at_the_end() -> None:
    tokenizer = ByteTokenizer()
    two = Vocabulary.of(tokenizer, vocab_size=tokenizer.vocab_size, eos_token_ids=[EOS, IM_END])
    matcher = LLMatcher(two.tokenizer(), LLMatcher.grammar_from_regex("a"))
    assert follows(matcher, b"a")
    assert allowed(matcher) == {EOS, IM_END}


@pytest.mark.parametrize("kind", [ByteTokenizer, _Spacing])
def test_forced_text_is_exact(kind: type[ByteTokenizer]) -> None:
    """Also where the tokenizer would add a space."""
    tokenizer = kind(PIECES)
    made = Vocabulary.of(tokenizer, vocab_size=tokenizer.vocab_size, eos_token_ids=[EOS])
    matcher = LLMatcher(made.tokenizer(), LLMatcher.grammar_from_regex("name日: true"))
    text = b""
    while not matcher.is_stopped():
        (token_id,) = allowed(matcher)
        text += tokenizer.token_bytes(token_id)
        assert matcher.consume_token(token_id)
    assert text.decode() == "name日: true"


def test_a_long_constant_is_encoded_as_far_as_it_is_needed() -> None:
    encoded: list[int] = []

    class Counting(ByteTokenizer):
        def encode_plain(self, text: str) -> list[int]:
            encoded.append(len(text))
            return super().encode_plain(text)

    tokenizer = Counting()
    made = Vocabulary.of(tokenizer, vocab_size=tokenizer.vocab_size, eos_token_ids=[EOS])
    text = "".join(map(str, range(2000)))
    matcher = LLMatcher(made.tokenizer(), LLMatcher.grammar_from_regex(text))
    done = b""
    while not matcher.is_stopped():
        tokens = matcher.compute_ff_tokens()[:32] or list(allowed(matcher))
        assert matcher.consume_tokens(tokens)
        done += bytes(tokens)
    assert done.decode() == text
    assert max(encoded) <= 1024


@given(text=st.text(max_size=20))
def test_the_sparse_tokenizer_takes_the_same_texts(text: str) -> None:
    whole = vocabulary()
    sparse = sparse_tokenizer(len(whole.token_bytes), whole.special_tokens, [EOS])
    for pattern in ("[a-zé]*", r"(.|\n){0,9}"):
        grammar = LLMatcher.grammar_from_regex(pattern)
        results = []
        for tokenizer in (ll_tokenizer(), sparse):
            matcher = LLMatcher(tokenizer, grammar)
            taken = follows(matcher, tokenizer.tokenize_str(text))
            results.append(taken and matcher.is_accepting())
        assert results[0] == results[1]
