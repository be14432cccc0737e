"""Answers of every family, whole and cut at every place."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.answer_events import ParsedMessage
from octavo.engine.parsers.formats import (
    HARMONY,
    REASONING_FORMATS,
    TOOL_FORMATS,
    detect_reasoning_format,
    detect_tool_format,
    marker_texts,
)
from octavo.engine.parsers.parser import make_parser
from octavo.engine.parsers.sections import CHUNK_CHARS, MAX_NAME_CHARS
from tests.engine.parsers.lab import TOOLS, Case, check, parse

PARIS: tuple[str, object] = ("get_weather", {"city": "Paris", "days": 2})
TIME: tuple[str, object] = ("get_time", {})


CASES = {
    "plain": Case("hermes", "Hello <b>world</b> \n", content="Hello <b>world</b> \n"),
    "hermes": Case(
        "hermes",
        'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": '
        '{"city": "Paris", "days": 2}}\n</tool_call>',
        [PARIS],
        "Let me see.",
    ),
    "hermes, parallel": Case(
        "hermes",
        '<tool_call>{"arguments": {"city": "Paris", "days": 2}, "name": "get_weather"}'
        '</tool_call>\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>\n',
        [PARIS, TIME],
    ),
    "hermes, close marker in a string": Case(
        "hermes",
        '<tool_call>{"name": "get_time", "arguments": {"z": "}</tool_call>\\"{"}}</tool_call>',
        [("get_time", {"z": '}</tool_call>"{'})],
    ),
    "hermes, arguments in a string": Case(
        "hermes",
        '<tool_call>{"name":"get_time","arguments":"{\\"z\\": \\"é\\"}"}</tool_call>',
        [("get_time", {"z": "é"})],
    ),
    "hermes, no arguments": Case("hermes", '<tool_call>{"name": "get_time"}</tool_call>', [TIME]),
    "hermes, not a call": Case(
        "hermes", "a <tool_call>hello</tool_call>", content="a <tool_call>hello</tool_call>"
    ),
    "hermes, no name": Case(
        "hermes", 'x <tool_call>{"a": 1}</tool_call>', content='x <tool_call>{"a": 1}</tool_call>'
    ),
    "hermes, without tools": Case(
        "hermes",
        '<tool_call>{"name": "get_time"}</tool_call>',
        content='<tool_call>{"name": "get_time"}</tool_call>',
        tools=[],
    ),
    "hermes, text behind": Case(
        "hermes", '<tool_call>{"name": "get_time"}</tool_call>\n\nDone.', [TIME], "Done."
    ),
    "hermes, text around": Case(
        "hermes",
        'So \n<tool_call>{"name": "get_time"}</tool_call> \n<tool_call>{"name": "get_time"}'
        "</tool_call> it is",
        [TIME, TIME],
        "So \nit is",
    ),
    "hermes, no end markers": Case(
        "hermes",
        '<tool_call>\n{"name": "get_time"}\n<tool_call>\n{"name": "get_time"}',
        [TIME, TIME],
    ),
    "hermes, as tags": Case(
        "hermes",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        [PARIS],
    ),
    "hermes, arguments twice": Case(
        "hermes",
        '<tool_call>{"name": "get_time", "arguments": {"z": 1}, "parameters": {"z": 2}, '
        '"arguments": {"z": 3}}</tool_call>',
        [("get_time", {"z": 1})],
    ),
    "hermes, a name and no name": Case(
        "hermes",
        '<tool_call>{"name": "get_time"}, {"a": 1}</tool_call>',
        [TIME],
        ', {"a": 1}</tool_call>',
    ),
    "hermes, calls without a marker between": Case(
        "hermes", '<tool_call>{"name": "get_time"} {"a": 1}', [TIME], '{"a": 1}'
    ),
    "hermes, reasoning": Case(
        "hermes",
        "<think>\nA call, <tool_call> say.\n</think>\n\n"
        '<tool_call>{"name": "get_time"}</tool_call>',
        [TIME],
        "",
        "A call, <tool_call> say.",
        "qwen3",
    ),
    "reasoning opened by the template": Case(
        None,
        "Well, then.</think>\n\nYes.",
        [],
        "Yes.",
        "Well, then.",
        "deepseek_r1",
        "<|Assistant|><think>\n",
    ),
    "reasoning opened twice": Case(
        None, "\n<think>\nHm</think>Yes.", [], "Yes.", "Hm", "qwen3", "<think>"
    ),
    "reasoning opened and quoted": Case(
        None, "A <think>, hm</think>Yes.", [], "Yes.", "A <think>, hm", "qwen3", "<think>\n"
    ),
    "reasoning that nobody opened": Case(None, "Hm</think>Yes.", [], "Yes.", "Hm", "deepseek_r1"),
    "reasoning switched off": Case(
        None, "Yes.", [], "Yes.", "", "deepseek_r1", "<think>\n\n</think>\n\n"
    ),
    "reasoning goes on": Case(
        None, " more</think>Yes.", [], "Yes.", " more", "qwen3", prefill="<think>Some"
    ),
    "an answer goes on": Case(
        None, " more.", [], " more.", "", "deepseek_r1", prefill="<think>Hm</think>Some"
    ),
    "a plain answer goes on": Case(None, " more.", [], " more.", "", "deepseek_r1", prefill="Some"),
    "reasoning amid content": Case(
        None, "So, <think> well </think>\nyes.", [], "So, yes.", "well", "qwen3"
    ),
    "reasoning, granite": Case(
        None,
        "Here's my thought process: Hm. Here's my response: Yes.",
        [],
        "Yes.",
        "Hm.",
        "granite",
    ),
    "white space around reasoning": Case(
        None, "<think>Hm \n</think>\n\nYes", [], "Yes", "Hm", "qwen3"
    ),
    "white space behind reasoning": Case("pythonic", "<think>Hm</think> \n", [], "", "Hm", "qwen3"),
    "a list in reasoning": Case(
        *("pythonic", "[get_time()] no</think>Yes", [], "Yes", "[get_time()] no"),
        *("deepseek_r1", "<think>"),
    ),
    "a word behind reasoning": Case(
        "phi4_mini_json", "<think>a</think>functools wraps", [], "functools wraps", "a", "qwen3"
    ),
    "reasoning alone": Case(None, "<think>Hm", [], "", "Hm", "qwen3"),
    "no reasoning": Case(None, "Hm </thi", [], "Hm </thi", "", "qwen3"),
    "granite": Case(
        "granite",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, '
        '{"name": "get_time", "arguments": {}}]',
        [PARIS, TIME],
    ),
    "granite, other markers": Case(
        "granite", '<tool_call>[{"name": "get_time", "arguments": {}}]', [TIME]
    ),
    "granite, no marker": Case(
        "granite", '[{"name": "get_time"}, {"name": "get_time"}]', [TIME, TIME]
    ),
    "granite, a list": Case("granite", '[{"name": "x"}]', content='[{"name": "x"}]'),
    "llama3, commas": Case(
        "llama3_json", '{"name": "get_time"}, {"name": "get_time"}', [TIME, TIME]
    ),
    "llama3, a list of calls": Case(
        "llama3_json", ' [{"name": "get_time"},\n{"name": "get_time"}]', [TIME, TIME]
    ),
    "llama3, a list": Case("llama3_json", "[1, 2]", content="[1, 2]"),
    "llama3, text behind": Case(
        "llama3_json", '{"type": "function", "name": "get_time"}\n\nMore?', [TIME], "More?"
    ),
    "granite, text behind": Case(
        "granite", '<|tool_call|>[{"name": "get_time"}], say', [TIME], ", say"
    ),
    "llama3": Case(
        "llama3_json",
        '{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}; {"name": "get_time"}',
        [PARIS, TIME],
    ),
    "llama3, python tag": Case(
        "llama3_json", '<|python_tag|>{"name": "get_time", "parameters": {}}', [TIME]
    ),
    "llama3, plain JSON": Case(
        "llama3_json", '{"name": "Ada", "x": 1}', content='{"name": "Ada", "x": 1}'
    ),
    "llama3, JSON behind text": Case(
        "llama3_json", 'So: {"name": "get_time"}', content='So: {"name": "get_time"}'
    ),
    "mistral, list": Case(
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]',
        [PARIS],
    ),
    "mistral, names": Case(
        "mistral",
        'Sure.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 2}[TOOL_CALLS]get_time{}',
        [PARIS, TIME],
        "Sure.",
    ),
    "mistral, ids": Case(
        "mistral", "[TOOL_CALLS]get_time[CALL_ID]abcdefghi[ARGS]{}", [TIME]
    ),
    "mistral, spaces": Case("mistral", "[TOOL_CALLS] get_time [ARGS] {}", [TIME]),
    "mistral, no name": Case("mistral", "[TOOL_CALLS] a b{}", content="[TOOL_CALLS] a b{}"),
    "deepseek v3": Case(
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris", "days": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function'
        "<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [PARIS, TIME],
    ),
    "deepseek v3.1": Case(
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Paris", "days": 2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>'
        "{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [PARIS, TIME],
    ),
    "deepseek v3.1, no arguments": Case(
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>now",
        [TIME],
        "now",
    ),
    "deepseek v3.1, a call and none": Case(
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁begin｜>"
        " a b<｜tool▁sep｜>{}",
        [TIME],
        "<｜tool▁call▁begin｜> a b<｜tool▁sep｜>{}",
    ),
    "kimi": Case(
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Paris", "days": 2}<|tool_call_end|>'
        "<|tool_calls_section_end|>",
        [PARIS],
    ),
    "kimi, singular": Case(
        "kimi_k2",
        "<|tool_call_section_begin|><|tool_call_begin|>get_time:0<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_call_section_end|>",
        [TIME],
    ),
    "jamba": Case(
        "jamba",
        '<tool_calls>[\n{"name": "get_time", "arguments": {}},\n{"name": "get_time"}]</tool_calls>',
        [TIME, TIME],
    ),
    "phi4": Case("phi4_mini_json", 'functools[{"name": "get_time", "arguments": {}}]', [TIME]),
    "phi4, a word": Case("phi4_mini_json", "Use functools.wraps", content="Use functools.wraps"),
    "pythonic": Case("pythonic", "[get_weather(city='Paris', days=2), get_time()]", [PARIS, TIME]),
    "pythonic, nested": Case(
        "pythonic",
        '[get_time(a=[1, -2.5, {"k": None}], b=(true, False), c="it\'s [)")]',
        [("get_time", {"a": [1, -2.5, {"k": None}], "b": [True, False], "c": "it's [)"})],
    ),
    "pythonic, a list": Case("pythonic", "[1, 2, 3] is one", content="[1, 2, 3] is one"),
    "pythonic, code": Case(
        "pythonic", "[get_time(a=f(1))]", content="[get_time(a=f(1))]"
    ),
    "pythonic, a call and none": Case("pythonic", "[get_time(), x y]", [TIME], "x y]"),
    "pythonic, unknown": Case("pythonic", "[rm(x=1)]", content="[rm(x=1)]"),
    "llama4": Case(
        "llama4_pythonic", "<|python_start|>[get_time()]<|python_end|>", [TIME]
    ),
    "qwen3 coder": Case(
        "qwen3_coder",
        "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
        "<function=get_time>\n</function>\n</tool_call>",
        [PARIS, TIME],
        "I look.",
    ),
    "seed": Case(
        "seed_oss",
        "So.\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n"
        "<parameter=days>2</parameter>\n</function>\n</seed:tool_call>",
        [PARIS],
        "So.",
    ),
    "lfm2": Case("lfm2", "<|tool_call_start|>[get_time()]<|tool_call_end|>Now.", [TIME], "Now."),
    "harmony": Case(
        HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to="
        'functions.get_weather <|constrain|>json<|message|>{"city": "Paris", "days": 2}<|call|>',
        [PARIS],
        "",
        "Hm.",
    ),
    "harmony, final": Case(
        HARMONY,
        "<|channel|>analysis<|message|>A < B<|end|><|start|>assistant<|channel|>final<|message|>"
        "Yes.",
        [],
        "Yes.",
        "A < B",
    ),
    "harmony, the recipient first": Case(
        HARMONY,
        "<|start|>assistant to=functions.get_time<|channel|>commentary <|constrain|>json<|message|>"
        "{}<|call|>",
        [TIME],
    ),
    "harmony, a call amid analysis": Case(
        HARMONY, "<|channel|>analysis to=functions.get_time code<|message|>{}<|call|>", [TIME]
    ),
    "harmony, a bare name": Case(
        HARMONY, "<|channel|>commentary to=get_time <|constrain|>json<|message|>{}<|call|>", [TIME]
    ),
    "harmony, no arguments": Case(
        HARMONY, "<|channel|>commentary to=functions.get_time<|message|><|call|>", [TIME]
    ),
    "harmony, another tool": Case(
        HARMONY,
        '<|channel|>commentary to=browser.search<|message|>{"q": 1}<|call|><|start|>assistant'
        "<|channel|>commentary to=user<|message|>Yes.",
        [],
        "Yes.",
        '{"q": 1}',
    ),
    "harmony, a broken header": Case(
        HARMONY, "<|channel|>??<|end|><|start|>assistant<|channel|>final<|message|>Yes.", [], "Yes."
    ),
    "harmony, none": Case(HARMONY, "Just <text", content="Just <text"),
}  # fmt: skip


every = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


@every
def test_whole_and_cut_anywhere(case: Case) -> None:
    check(case)


@every
def test_broken_off(case: Case) -> None:
    for end in range(len(case.text)):
        text = case.text[:end]
        assert parse(case, list(text)) == parse(case, [text]), text


FRAGMENTS = sorted(
    {m for f in TOOL_FORMATS.values() for m in f.sections if m}
    | {m for f in REASONING_FORMATS.values() for m in (*f.open, *f.close)}
    | {'{"name": "get_time"', ', "arguments": ', '{"a": ["', '"]}', "}", "]", "[", ",", " ", "\n"}
    | {
        "get_time",
        "(",
        "a=",
        ")",
        "</tool_call>",
        "<function=get_time>",
        "<parameter=a>",
        '"',
        "\\",
    }
    | {"</parameter>", "</function>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "text", "<", "<|"}
    | {"<|channel|>", "<|message|>", "analysis", "to=functions.f", "<|end|>", "<|start|>assistant"}
)


@pytest.mark.parametrize("tool_format", [*TOOL_FORMATS, HARMONY])
@given(
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=14), cuts=st.sets(st.integers(0, 200))
)
def test_any_text_cut_anywhere(tool_format: str, fragments: list[str], cuts: set[int]) -> None:
    text = "".join(fragments)
    case = Case(tool_format, text, reasoning_format=None if tool_format == HARMONY else "qwen3")
    edges = [0, *sorted(c for c in cuts if c < len(text)), len(text)]
    whole = parse(case, [text])
    assert parse(case, [text[a:b] for a, b in pairwise(edges)]) == whole
    assert parse(case, list(text)) == whole


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
@given(text=st.text(alphabet="ab {}\"'<>\n", max_size=30))
def test_text_without_calls_is_content(tool_format: str, text: str) -> None:
    message = parse(Case(tool_format, text), list(text))
    assert (message.content, message.calls) == (text, [])


@pytest.mark.parametrize(
    "text",
    ["<tool_call>" * 3000, "{" * 60_000, "[" * 60_000, '<tool_call>{"name":"get_time","a":' * 2000],
)
@pytest.mark.parametrize("tool_format", [*TOOL_FORMATS, HARMONY])
def test_long_rubbish_is_linear_work(tool_format: str, text: str) -> None:
    message = parse(Case(tool_format, text), [text])
    assert len(message.content) + sum(len(c.arguments) for c in message.calls) <= len(text)


LONG = {  # longer than what joins a section's buffer at once
    "text behind": Case(
        "hermes",
        '<tool_call>{"name": "get_time"}</tool_call>' + "x" * CHUNK_CHARS,
        [TIME],
        "x" * CHUNK_CHARS,
    ),
    "a value that is nested too deep": Case(
        "qwen3_coder",
        f"<tool_call><function=get_weather><parameter=days>{'[' * 5000}</parameter></function>",
        [("get_weather", {"days": "[" * 5000})],
    ),
    "a name in white space": Case(
        "kimi_k2",
        spaced := "<|tool_calls_section_begin|><|tool_call_begin|>"
        + " " * MAX_NAME_CHARS
        + "get_time<|tool_call_argument_begin|>{}",
        content=spaced,
    ),
    "a tag in white space": Case(
        "qwen3_coder",
        tagged := f"<tool_call><function={' ' * MAX_NAME_CHARS}get_time></function></tool_call>",
        content=tagged,
    ),
}


@pytest.mark.parametrize("case", LONG.values(), ids=list(LONG))
def test_longer_than_a_chunk(case: Case) -> None:
    for pieces in ([case.text], list(case.text)):
        message = parse(case, pieces)
        assert [(c.name, json.loads(c.arguments)) for c in message.calls] == case.calls
        assert message.content == case.content


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>" + "x" * 2 * MAX_NAME_CHARS),
        ("qwen3_coder", "<tool_call><function=" + "x" * 2 * MAX_NAME_CHARS),
        ("hermes", '<tool_call>{"name": 5, '),
    ],
)
def test_what_can_be_no_call_any_more_is_told_at_once(tool_format: str, text: str) -> None:
    parser = make_parser(tool_format=tool_format, reasoning_format=None, tools=TOOLS)
    assert ParsedMessage().add(parser.feed(text)).content == text.rstrip()


def test_arguments_come_as_they_are_written() -> None:
    parser = make_parser(tool_format="hermes", reasoning_format=None, tools=TOOLS)
    parser.feed('<tool_call>{"name": "get_weather", "arguments": {"city": "Pa')
    assert ParsedMessage(calls=[]).add(parser.feed("")) == ParsedMessage()
    events = parser.feed("ris")
    assert [e.text for e in events if hasattr(e, "text")] == ["ris"]


@pytest.mark.parametrize("name", [*TOOL_FORMATS, *REASONING_FORMATS, HARMONY])
def test_markers_are_told(name: str) -> None:
    """What the parser needs to find is in `marker_texts`: without it, special tokens hide it."""
    tool, reasoning = (name if name in t else None for t in (TOOL_FORMATS, REASONING_FORMATS))
    texts = marker_texts(HARMONY if name == HARMONY else tool, reasoning)
    told = "\n".join(texts)
    for case in CASES.values():
        if case.tool_format == name:
            for marker in re.findall(
                r"<\|[^ |]+\|>|<｜.+?｜>|\[[A-Z_]+\]|</?tool_calls?>", case.text
            ):
                assert marker in told or marker == "<|constrain|>", marker
    if reasoning:
        assert {*REASONING_FORMATS[name].open, *REASONING_FORMATS[name].close} <= set(texts)


@pytest.mark.parametrize(
    ("template", "tool", "reasoning"),
    [
        ("{{ '<tool_call>' }}", "hermes", None),
        ("<tool_call>\n<function=x>", "qwen3_coder", None),
        ("<tool_call> {{ content.split('</think>') }}", "hermes", "qwen3"),
        ("[TOOL_CALLS]", "mistral", None),
        ("<|start|>assistant<|channel|>final", HARMONY, HARMONY),
        ("{{ messages }}", None, None),
    ],
)
def test_formats_are_detected(template: str, tool: str | None, reasoning: str | None) -> None:
    assert detect_tool_format(template) == tool
    assert detect_reasoning_format(template) == reasoning
