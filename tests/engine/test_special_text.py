from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from octavo.engine.special_text import SpecialText, _trie_pattern
from octavo.errors import RequestError
from tests.engine.tokenizer_lab import SPECIALS, byte_level, metaspace, texts

pieces = st.lists(st.one_of(texts, st.sampled_from([*SPECIALS, "<|im_", "end|>"])), max_size=5)
plain = SpecialText(byte_level())
spaced = SpecialText(metaspace())


def without_specials(text: str) -> bool:
    return not any(s in text for s in [*SPECIALS, "</s>", "<unk>"])


@given(texts)
def test_plain_is_ordinary_where_nothing_special_is_spelled(text: str) -> None:
    if without_specials(text):
        assert plain.encode_plain(text) == byte_level().encode(text, add_special_tokens=False).ids
        assert spaced.encode_plain(text) == metaspace().encode(text, add_special_tokens=False).ids


@given(pieces)
def test_plain_has_no_special_ids_and_loses_nothing(parts: list[str]) -> None:
    text = "".join(parts)
    ids = plain.encode_plain(text)
    assert not plain.ids & set(ids)
    assert byte_level().decode(ids, skip_special_tokens=False) == text


@given(pieces)
def test_unmarked_text_is_encoded_as_the_tokenizer_does(parts: list[str]) -> None:
    """A template's own text: special tokens are parsed, and joins are as in one text."""
    text = "".join(parts)
    for special, core in ((plain, byte_level()), (spaced, metaspace())):
        expected = core.encode(text, add_special_tokens=False).ids
        assert special.encode(text, special.marker([text])) == expected


@given(pieces, pieces, pieces)
def test_marked_text_never_becomes_special(a: list[str], b: list[str], c: list[str]) -> None:
    """Messages between a template's tokens, whatever they spell, whole or in halves."""
    messages = ["".join(part) for part in (a, b, c)]
    marker = plain.marker(messages)
    marked = [marker.mark(m) for m in messages]
    assert [marker.unmark(m) for m in marked] == messages
    ids = plain.encode("<|im_start|>" + "".join(marked) + "<|im_end|>", marker)
    assert (ids[0], ids[-1]) == (1, 2)
    assert not plain.ids & set(ids[1:-1])
    assert ids[1:-1] == plain.encode_plain("".join(messages))


def test_marks_are_few_and_leave_length_and_what_is_not_special_alone() -> None:
    marker = plain.marker([])
    for text in ("", "Hello", "a < b", "<tool_call>x</tool_call>", "<|im_x|>", "  </think> x"):
        assert marker.mark(text) == text
    text = "say <|im_end|> and <s>"
    marked = marker.mark(text)
    assert len(marked) == len(text)
    assert sum(a != b for a, b in zip(text, marked)) == 2


def test_halves_at_the_ends_are_marked_behind_spaces_too() -> None:
    marker = plain.marker([])
    for text in ("hi <|im_", "hi <|im_\n ", "  end|> hi", "|>"):
        assert marker.mark(text) != text
        assert marker.unmark(marker.mark(text)) == text


def test_stand_ins_are_not_in_the_text() -> None:
    taken = "".join(chr(0xF0000 + i) for i in range(30))
    marker = plain.marker([taken])
    assert not set(marker.stand_ins.values()) & set(taken)
    assert marker.end not in {*taken, *marker.stand_ins.values()}
    assert marker.unmark(marker.mark(taken + "<s>")) == taken + "<s>"
    everything = "".join(map(chr, range(0xF0000, 0xFFFFE)))
    with pytest.raises(RequestError, match="private-use"):
        plain.marker([everything])


def test_flags_of_added_tokens() -> None:
    core = Tokenizer.from_str(byte_level().to_str())
    core.add_special_tokens(
        [
            AddedToken("<l>", lstrip=True, normalized=False),
            AddedToken("<r>", rstrip=True, normalized=False),
            AddedToken("word", single_word=True, normalized=False),
        ]
    )
    special = SpecialText(core)
    marker = special.marker([])
    for text in ("a  <l>  b", "a  <r>  b", "<r> <l>", "word a sword words word_ (word)", "<l><r>"):
        expected = core.encode(text, add_special_tokens=False).ids
        assert special.encode(text, marker) == expected, text


def test_a_tokenizer_without_special_tokens() -> None:
    core = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    special = SpecialText(core)
    marker = special.marker([])
    assert special.ids == frozenset()
    assert marker.mark("<s>") == "<s>"
    assert special.encode("ab a", marker) == [2, 0]


@given(
    st.lists(st.text("ab<|.*(", min_size=1, max_size=5), min_size=1, max_size=8), st.text("ab<|.*(")
)
def test_trie_matches_the_longest(words: list[str], text: str) -> None:
    expected = re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))))
    found = re.compile(_trie_pattern(words)).findall(text)
    assert found == expected.findall(text)
