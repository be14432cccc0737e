"""The text that tokens make: the same however they are cut, and never more than is sure."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Core

from octavo.contracts.sampling_params import SamplingParams
from octavo.engine.detokenizer import (
    Detokenizer,
    DetokenizerAtEnd,
    Piece,
    make_detokenizer,
)
from octavo.engine.tokenizer import Tokenizer
from octavo.engine.tokenizer_parts import TokenizerParts
from tests.engine.fakes import EOS, IM_END, IM_START, ByteTokenizer
from tests.engine.tokenizer_lab import byte_level, metaspace, texts

FAMILY = "Zoë → 你好, 👨‍👩‍👧‍👦 🇫🇷 é 🌶️ end"  # user case 4: joined emoji, flags, e + U+0301


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` cut at the given places."""
    places = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


def run(
    pieces: list[bytes], params: SamplingParams, *, per_step: int = 1, finish: bool = True
) -> tuple[list[str], int, str | None]:
    """Push `pieces` as tokens: the deltas, the number of tokens used, the stop string."""
    tokenizer = ByteTokenizer(pieces)
    first = tokenizer.vocab_size - len(pieces)
    ids = list(range(first, tokenizer.vocab_size))
    detokenizer = Detokenizer(tokenizer, params)
    deltas, used = [], 0
    for start in range(0, len(ids), per_step):
        step = ids[start : start + per_step]
        last = start + per_step >= len(ids)
        piece = detokenizer.push(step, finished=last and finish)
        deltas.append(piece.text)
        used += piece.num_tokens
        if piece.stop is not None:
            return deltas, used, piece.stop
    return deltas, used, None


def first_stop(text: str, stops: list[str]) -> tuple[int, str | None]:
    """The rule, written plainly: the first end of any stop string; the longest that ends there."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            return end, max(ending, key=len)
    return len(text), None


def whole_characters(data: bytes) -> str:
    """Decoded, a character cut off at the end left out."""
    for cut in range(1, 4):
        try:
            data[-cut:].decode("utf-8")
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and error.start == 0:
                return data[:-cut].decode("utf-8", "replace")
    return data.decode("utf-8", "replace")


class TestCharacters:
    def test_never_shows_half_a_character(self) -> None:
        data = FAMILY.encode()
        for size in (1, 2, 3, 5, 7):
            pieces = [data[i : i + size] for i in range(0, len(data), size)]
            deltas, used, _ = run(pieces, SamplingParams())
            assert "".join(deltas) == FAMILY
            assert used == len(pieces)
            text = ""
            for delta in deltas:
                text += delta
                assert FAMILY.startswith(text)
                assert "\ufffd" not in text

    def test_a_character_cut_by_the_end_is_left_out(self) -> None:
        data = FAMILY.encode()
        for end in range(1, len(data)):
            text = "".join(run([data[i : i + 1] for i in range(end)], SamplingParams())[0])
            assert FAMILY.startswith(text)
            assert "\ufffd" not in text
            assert len(data[:end]) - len(text.encode()) < 4

    def test_bytes_that_nothing_can_mend_become_replacement_characters_at_once(self) -> None:
        deltas, _, _ = run([b"a\xff", b"b", b"\xe4", b"c"], SamplingParams())
        assert deltas == ["a\ufffd", "b", "", "\ufffdc"]

    @given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=12), st.integers(1, 4))
    def test_any_bytes_cut_anywhere_decode_as_a_whole(
        self, data: bytes, cuts: list[int], per_step: int
    ) -> None:
        deltas, _, _ = run(pieces_of(data, cuts), SamplingParams(), per_step=per_step)
        assert "".join(deltas) == whole_characters(data)

    def test_the_leading_space_stays(self) -> None:
        assert run([b" Paris"], SamplingParams())[0] == [" Paris"]

    def test_ids_without_bytes_bring_no_text(self) -> None:
        detokenizer = Detokenizer(ByteTokenizer(), SamplingParams())
        assert detokenizer.push([97, 10_000, 98]) == Piece("ab", 3)


class TestRealTokenizers:
    """Over files of both common kinds, the text is what the tokenizer decodes, and streaming does
    not eat the space that a completion begins with."""

    @pytest.mark.parametrize("core", [byte_level(), metaspace()], ids=["byte-level", "metaspace"])
    @given(text=texts)
    def test_text_is_what_the_tokenizer_decodes(self, core: Core, text: str) -> None:
        parts = TokenizerParts(
            core=core, bos_token_id=None, eos_token_ids=[2], special_tokens={}, chat_templates={}
        )
        tokenizer = Tokenizer(parts)
        ids = tokenizer.encode_plain(text)
        detokenizer = Detokenizer(tokenizer, SamplingParams())
        deltas = [detokenizer.push([i]).text for i in ids]
        joined = "".join(deltas)
        whole = tokenizer.decode(ids)
        assert joined in (whole, f" {whole}")
        assert joined == b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")


class TestSpecialTokens:
    def test_skipped_or_kept(self) -> None:
        ids = [104, IM_END, 105]
        for skip, text in ((True, "hi"), (False, "h<|im_end|>i")):
            detokenizer = Detokenizer(ByteTokenizer(), SamplingParams(skip_special_tokens=skip))
            assert detokenizer.push(ids).text == text

    def test_some_are_shown(self) -> None:
        params = SamplingParams(shown_special_token_ids=[IM_END])
        detokenizer = Detokenizer(ByteTokenizer(), params)
        assert detokenizer.push([104, IM_START, IM_END, 105]).text == "h<|im_end|>i"

    def test_one_inside_a_character_does_not_break_it_when_skipped(self) -> None:
        a, b = "é".encode()
        assert Detokenizer(ByteTokenizer(), SamplingParams()).push([a, IM_END, b]).text == "é"

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({}, "hi"),
            ({"skip_special_tokens": False}, "hi"),
            ({"include_stop_str_in_output": True}, "hi"),
            ({"include_stop_str_in_output": True, "skip_special_tokens": False}, "hi<eos>"),
        ],
    )
    def test_text_of_the_end_token(self, options: dict[str, bool], text: str) -> None:
        detokenizer = Detokenizer(ByteTokenizer(), SamplingParams(**options))
        piece = detokenizer.push([104, 105, EOS], stop_token=True, finished=True)
        assert piece == Piece(text, 3)


class TestStopStrings:
    ALPHABET = (b"DEF", b"GH", b"I", b"J", b"K")  # user case 3

    @pytest.mark.parametrize(
        ("stop", "max_tokens", "text", "with_stop", "used"),
        [
            ("DEFGHIJ", 5, "", "DEFGHIJ", 4),
            ("EFG", 5, "D", "DEFG", 2),
            ("HIZ", 3, "DEFGHI", "DEFGHI", 3),
        ],
    )
    def test_over_several_tokens(
        self, stop: str, max_tokens: int, text: str, with_stop: str, used: int
    ) -> None:
        for include, expected in ((False, text), (True, with_stop)):
            params = SamplingParams(stop=stop, include_stop_str_in_output=include)
            deltas, num_tokens, found = run(list(self.ALPHABET[:max_tokens]), params)
            assert "".join(deltas) == expected
            assert num_tokens == used
            assert found == (stop if stop in "DEFGHIJK" else None)

    def test_every_short_substring(self) -> None:
        text = "The cat sat on the mat, and the cat — ça va — sat there; 你好 aaab aab. " * 2
        data = text.encode()
        pieces = [data[i : i + 3] for i in range(0, len(data), 3)]
        for size in range(1, 13):
            for start in range(len(text) - size + 1):
                stop = text[start : start + size]
                deltas, _, found = run(pieces, SamplingParams(stop=[stop]))
                assert "".join(deltas) == text[: text.find(stop)]
                assert found == stop

    @given(
        st.text("ab", max_size=30),
        st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=4),
        st.lists(st.integers(0, 30), max_size=10),
        st.integers(1, 3),
        st.booleans(),
    )
    def test_the_rule(
        self, text: str, stops: list[str], cuts: list[int], per_step: int, include: bool
    ) -> None:
        params = SamplingParams(stop=stops, include_stop_str_in_output=include)
        deltas, used, found = run(pieces_of(text.encode(), cuts), params, per_step=per_step)
        end, stop = first_stop(text, stops)
        shown = text[:end] if stop is None or include else text[: end - len(stop)]
        assert found == stop
        assert "".join(deltas) == shown
        pieces = pieces_of(text.encode(), cuts)
        assert len(b"".join(pieces[:used])) >= end
        assert used == 0 or len(b"".join(pieces[: used - 1])) < end

    @given(st.text("ab", max_size=24), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1))
    def test_withholds_exactly_what_may_still_match(self, text: str, stops: list[str]) -> None:
        end, stop = first_stop(text, stops)
        if stop is not None:
            text = text[: end - 1]
        deltas, _, _ = run([c.encode() for c in text], SamplingParams(stop=stops), finish=False)
        held = len(text) - len("".join(deltas))
        may_match = [
            n
            for s in stops
            for n in range(min(len(s), len(text) + 1))
            if text.endswith(s[:n]) or n == 0
        ]
        assert held == max(may_match)

    def test_what_follows_a_stop_that_does_not_count_yet_may_begin_one(self) -> None:
        params = SamplingParams(stop="xy", min_tokens=1)
        deltas, _, found = run([b"xyx", b"y"], params)
        assert ("".join(deltas), found) == ("xy", "xy")

    def test_held_text_is_shown_before_an_end_token(self) -> None:
        detokenizer = Detokenizer(ByteTokenizer(), SamplingParams(stop="xyz"))
        assert detokenizer.push([97, 120, 121]).text == "a"
        assert detokenizer.push([EOS], stop_token=True, finished=True).text == "xy"

    def test_a_stop_string_may_be_split_by_characters_of_many_bytes(self) -> None:
        data = "a你好b".encode()
        deltas, used, found = run(
            [data[i : i + 1] for i in range(len(data))], SamplingParams(stop="好")
        )
        assert ("".join(deltas), used, found) == ("a你", 7, "好")

    def test_complete_within_min_tokens_is_text(self) -> None:
        params = SamplingParams(stop="ab", min_tokens=2, max_tokens=9)
        deltas, used, found = run([b"a", b"b", b"a", b"b"], params)
        assert ("".join(deltas), used, found) == ("ab", 4, "ab")
        params = SamplingParams(stop="aba", min_tokens=3, max_tokens=9)
        deltas, used, found = run([b"a", b"b", b"a", b"b", b"a"], params)
        assert ("".join(deltas), used, found) == ("ab", 5, "aba")

    def test_long_repetitive_stop_strings_that_almost_match(self) -> None:
        stops = ["a" * 4000 + c * 96 for c in "bcdefgh"]
        text = ("a" * 3999 + "z") * 4
        pieces = [text[i : i + 8].encode() for i in range(0, len(text), 8)]
        deltas, _, found = run(pieces, SamplingParams(stop=stops))
        assert "".join(deltas) == text
        assert found is None


@given(
    st.lists(st.binary(max_size=5), max_size=12),
    st.booleans(),
    st.booleans(),
    st.integers(1, 4),
)
def test_text_made_at_the_end_is_the_same(
    pieces: list[bytes], keeps_stop: bool, has_end: bool, per_step: int
) -> None:
    tokenizer = ByteTokenizer(pieces)
    ids = list(range(tokenizer.vocab_size - len(pieces), tokenizer.vocab_size))
    ids += [EOS] * has_end
    params = SamplingParams(include_stop_str_in_output=keeps_stop, skip_special_tokens=False)
    texts = []
    for at_end in (False, True):
        detokenizer = make_detokenizer(tokenizer, params, is_shown_at_end=at_end)
        assert isinstance(detokenizer, DetokenizerAtEnd) == at_end
        made = [
            detokenizer.push(ids[i : i + per_step]) for i in range(0, len(ids) - per_step, per_step)
        ]
        rest = ids[len(made) * per_step :]
        made.append(detokenizer.push(rest, stop_token=has_end, finished=True))
        assert sum(piece.num_tokens for piece in made) == len(ids)
        assert not (at_end and any(piece.text for piece in made[:-1]))
        texts.append("".join(piece.text for piece in made))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("stop", [{"stop": ["x"]}, {"stop_regex": "x+"}])
def test_where_text_may_end_the_output_it_is_made_at_once(stop: dict[str, Any]) -> None:
    params = SamplingParams(**stop)
    detokenizer = make_detokenizer(ByteTokenizer(), params, is_shown_at_end=True)
    assert detokenizer.push([*b"hix"]).stop is not None


def test_without_detokenizing_there_is_no_text() -> None:
    detokenizer = make_detokenizer(ByteTokenizer(), SamplingParams(detokenize=False))
    assert detokenizer.push([104, 105, EOS], stop_token=True, finished=True) == Piece("", 3)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("per_step", [1, 4])
def test_a_stop_string_may_be_a_special_token(skip: bool, keep: bool, per_step: int) -> None:
    """vllm#792, trl#3425, TGI#1724: it is no text, and was never found."""
    params = SamplingParams(
        stop=["iX", "<|im_end|>"],
        min_tokens=2,
        skip_special_tokens=skip,
        include_stop_str_in_output=keep,
    )
    detokenizer = Detokenizer(ByteTokenizer(), params)  # type: ignore[arg-type]
    ids = [IM_END, 104, 105, IM_END, 120]
    text, used = "", 0
    for start in range(0, len(ids), per_step):
        piece = detokenizer.push(ids[start : start + per_step])
        text, used = text + piece.text, used + piece.num_tokens
        if piece.stop is not None:
            break
    shown = "hi" if skip else "<|im_end|>hi"
    assert (text, used, piece.stop) == (shown + "<|im_end|>" * keep, 4, "<|im_end|>")
