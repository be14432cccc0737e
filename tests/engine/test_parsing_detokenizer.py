"""Stop strings in answers that are taken apart: they end content, and nothing else."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.answer_events import Content, Event, ParsedMessage, Reasoning, joined
from octavo.contracts.sampling_params import SamplingParams
from octavo.engine.detokenizer import make_detokenizer
from octavo.engine.parsers.parser import OutputParser, make_parser
from tests.engine.fakes import EOS, IM_END, ByteTokenizer

TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "END"}}\n</tool_call>'
PARTS = [
    *("<think>", "</think>", CALL, "<tool_call>", "</tool_call>", "END", "EN", "D", "<", "ab"),
    *("\n", " ", "E", "Zoë", "🌶"),
]


def parser() -> OutputParser:
    return make_parser(tool_format="hermes", reasoning_format="qwen3", tools=TOOLS)


def expected(text: str, stop: str, *, keep: bool) -> tuple[list[Event], bool]:
    """The rule, written plainly: the whole is parsed, then cut at the first stop in content."""
    whole = parser()
    events: list[Event] = []
    for event in joined(whole.feed(text) + whole.finish()):
        if isinstance(event, Content) and stop in event.text:
            at = event.text.find(stop) + (len(stop) if keep else 0)
            return [*events, *([Content(event.text[:at])] if at else [])], True
        events.append(event)
    return events, False


def run(
    pieces: list[bytes], params: SamplingParams, per_step: int
) -> tuple[list[Event], str | None, int]:
    tokenizer = ByteTokenizer(pieces)
    ids = list(range(tokenizer.vocab_size - len(pieces), tokenizer.vocab_size))
    detokenizer = make_detokenizer(tokenizer, params, parser())  # type: ignore[arg-type]
    events: list[Event] = []
    used = 0
    for start in range(0, len(ids), per_step):
        finished = start + per_step >= len(ids)
        piece = detokenizer.push(ids[start : start + per_step], finished=finished)
        events += piece.events
        used += piece.num_tokens
        if piece.stop is not None:
            return events, piece.stop, used
    return events, None, used


@given(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=8).map("".join),
    st.sampled_from(["END", "b\n", "<", "\n", "ë"]),
    st.booleans(),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_the_same_at_every_token_boundary(
    text: str, stop: str, keep: bool, per_step: int, random: object
) -> None:
    """Events add up to the whole message cut at the stop, however tokens cut the text, characters
    included, and however many tokens a step brings; the tokens that count are the same too."""
    params = SamplingParams(stop=[stop], include_stop_str_in_output=keep)
    data = text.encode()
    events, stopped = expected(text, stop, keep=keep)
    places = sorted({0, len(data), *(random.randrange(len(data) + 1) for _ in range(6))})  # type: ignore[attr-defined]
    cut = [data[a:b] for a, b in pairwise(places)]
    counts = set()
    for pieces, step in ((cut, per_step), (cut, 1), ([bytes([b]) for b in data], per_step)):
        told, found, used = run(pieces, params, step)
        assert joined(told) == events
        assert found == (stop if stopped else None)
        if pieces is cut:
            counts.add(used)
    assert len(counts) == 1


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_reasoning_and_calls_may_hold_a_stop(size: int) -> None:
    text = f"<think>at the END</think>Look:{CALL}"
    data = (text + "and the END of it").encode()
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    events, stop, used = run(pieces, SamplingParams(stop=["END"]), 1)
    message = ParsedMessage().add(events)
    assert stop == "END"
    assert message.reasoning == "at the END"
    assert [c.arguments for c in message.calls] == ['{"city": "END"}']
    assert message.content == "Look:and the "
    assert used == -(-len((text + "and the END").encode()) // size)


def test_a_regex_begins_anew_with_each_stretch_of_content() -> None:
    pieces = [b"ab", b"<think>x</think>", b"cabc"]
    events, stop, _ = run(pieces, SamplingParams(stop_regex=["^cab", "b.*c"]), 1)
    assert joined(events) == [Content("ab"), Reasoning("x")]
    assert stop == "^cab"


def test_within_min_tokens_a_stop_is_text() -> None:
    pieces = [b"END", b"a", b"END", b"b"]
    events, stop, used = run(pieces, SamplingParams(stop=["END"], min_tokens=1, max_tokens=9), 2)
    assert (joined(events), stop, used) == ([Content("ENDa")], "END", 3)


def test_what_only_the_end_makes_content_is_searched_too() -> None:
    """`<tool` may become a marker until the answer ends."""
    events, stop, _ = run([b"ok <to", b"ol"], SamplingParams(stop=["<tool"]), 1)
    assert (joined(events), stop) == ([Content("ok ")], "<tool")


def test_the_text_of_an_end_token_is_shown_only_on_demand() -> None:
    for keep, text in ((False, "hi"), (True, "hi<eos>")):
        params = SamplingParams(include_stop_str_in_output=keep, skip_special_tokens=False)
        detokenizer = make_detokenizer(ByteTokenizer(), params, parser())  # type: ignore[arg-type]
        piece = detokenizer.push([*b"hi", EOS], stop_token=True, finished=True)
        assert (piece.text, joined(piece.events), piece.num_tokens) == (text, [Content(text)], 3)


@pytest.mark.parametrize(
    ("pieces", "events"),
    [
        ([b"ab", b"EN"], [Content("abEN")]),
        ([b"<think>", b"hm"], [Reasoning("hm")]),
        ([b"<think>hm</think>", b"a", b"<tool"], [Reasoning("hm"), Content("a<tool")]),
    ],
    ids=["content", "reasoning", "marker"],
)
def test_a_special_token_that_is_a_stop_ends_everything(
    pieces: list[bytes], events: list[Event]
) -> None:
    tokenizer = ByteTokenizer([*pieces, b"more"])
    first = tokenizer.vocab_size - len(pieces) - 1
    params = SamplingParams(stop=["END", "<|im_end|>"])
    detokenizer = make_detokenizer(tokenizer, params, parser())  # type: ignore[arg-type]
    ids = [*range(first, first + len(pieces)), IM_END, tokenizer.vocab_size - 1]
    piece = detokenizer.push(ids)
    assert (joined(piece.events), piece.stop) == (events, "<|im_end|>")
    assert piece.num_tokens == len(pieces) + 1
