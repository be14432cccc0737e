"""The pages' modules one by one, in Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.entrypoints.web.lab import in_thread, module, page_of


@pytest.fixture(scope="module")
def page(chromium: Any) -> Iterator[Any]:
    with in_thread() as s, page_of(chromium, f"{s.url}/") as opened:
        opened.wait_for_selector("body[data-ready]")
        yield opened


def rendered(page: Any, text: str) -> str:
    body = "(d => (d.append(...m.renderMarkdown(argument)), d.innerHTML))"
    html: str = module(page, "markdown", f"{body}(document.createElement('div'))", text)
    return html


MARKDOWN = {
    "plain text": "<p>plain text</p>",
    "one\ntwo\n\nthree": "<p>one<br>two</p><p>three</p>",
    "# Title #": "<h3>Title</h3>",
    "a **b** *c* `d*e*` ~~f~~": "<p>a <strong>b</strong> <em>c</em> <code>d*e*</code> "
    "<del>f</del></p>",
    "snake_case_name 2*3*4": "<p>snake_case_name 2*3*4</p>",
    "- a\n- b\n  - c\n- d": "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "> a\n> b": "<blockquote><p>a<br>b</p></blockquote>",
    "```py\nx = [1]\n\n# no\n```\nafter": "<pre><code>x = [1]\n\n# no</code></pre><p>after</p>",
    "```\nstill coming": "<pre><code>still coming</code></pre>",
    "---": "<hr>",
    "[a](https://b.c/d)": '<p><a href="https://b.c/d" rel="noreferrer noopener" '
    'target="_blank">a</a></p>',
    "| a | b |\n|---|---|\n| 1 | 2 |": '<div class="table" tabindex="0"><table><thead><tr>'
    "<th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table></div>",
    r"\*not\*": "<p>*not*</p>",
    "中文 **粗体** 与 `代码`": "<p>中文 <strong>粗体</strong> 与 <code>代码</code></p>",
}

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "[a](javascript:alert(1)) [b](data:text/html,x) [c](  JaVaScRiPt:alert(1))",
    "![a](https://tracker.example/pixel.png)",
    '[a](https://x"onmouseover="alert(1))',
    "```<script>\n</code></pre><script>alert(1)</script>\n```",
    "<https://a.b/<svg/onload=alert(1)>>",
    "> " * 300 + "deep",
    "- " * 300 + "deep",
    "**" * 3000,
    "[" * 3000,
    "`" * 3000 + "a",
    "_a" * 3000,
    "|" * 3000 + "\n|-|",
    "\0\u202e\ufffd",
)


ALLOWED = {
    *("P", "BR", "BLOCKQUOTE", "UL", "LI", "CODE", "PRE", "STRONG", "EM", "DEL", "A", "HR", "DIV"),
    *("TABLE", "THEAD", "TBODY", "TR", "TH", "TD"),
}


def test_markdown(page: Any) -> None:
    for text, html in MARKDOWN.items():
        assert rendered(page, text) == html, text


def test_hostile_markdown_makes_nothing_but_text(page: Any) -> None:
    body = """(d => (d.append(...m.renderMarkdown(argument)),
        [...d.querySelectorAll('*')].map(e => [e.tagName, e.getAttribute('href'),
            e.getAttributeNames().filter(n => n.startsWith('on') || n === 'src').length])))"""
    for text in HOSTILE:
        found = module(page, "markdown", f"{body}(document.createElement('div'))", text)
        assert {tag for tag, _, _ in found} <= ALLOWED, text[:60]
        assert not [n for _, _, n in found if n]
        assert all(href.startswith("https:") for _, href, _ in found if href)


def test_events_however_they_are_cut(page: Any) -> None:
    stream = 'data: {"a": "é"}\r\n\r\n: note\ndata:one\ndata: two\n\nevent: x\n\ndata: [DONE]\n\n'
    body = """Array.from({length: argument.length + 1}, (_, cut) => {
        const parser = new m.EventParser();
        return [...parser.push(argument.slice(0, cut)), ...parser.push(argument.slice(cut))];
    })"""
    for events in module(page, "sse", body, stream):
        assert events == ['{"a": "é"}', "one\ntwo", "[DONE]"]


def test_deltas_make_a_message(page: Any) -> None:
    deltas = [
        {"delta": {"role": "assistant"}},
        {"delta": {"reasoning": "hm"}},
        {"delta": {"content": "a"}, "logprobs": {"content": [
            {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -1}]}]}},
        {"delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}]}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"x":'}}]}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}},
        {"delta": {}, "finish_reason": "tool_calls"},
    ]  # fmt: skip
    body = "argument.reduce((s, d) => (m.addChoice(s, d), s), m.emptyAnswer())"
    message = module(page, "answer", body, deltas)
    assert (message["reasoning"], message["content"]) == ("hm", "a")
    assert message["toolCalls"][0]["function"] == {"name": "f", "arguments": '{"x":1}'}
    assert message["tokens"] == [{"token": "a", "logprob": -0.5, "top": [["b", -1]]}]
    assert message["finishReason"] == "tool_calls"
    wire = module(page, "answer", "m.wireMessages('be kind', argument)", [
        {"role": "user", "content": "u"},
        {**message, "content": ""},
        {"role": "tool", "callId": "c", "content": "1"},
        {"role": "assistant", "content": "", "error": {"message": "x"}},
    ])  # fmt: skip
    assert [w["role"] for w in wire] == ["system", "user", "assistant", "tool"]
    assert wire[2]["content"] is None
    assert wire[2]["tool_calls"][0]["id"] == wire[3]["tool_call_id"] == "c"


def test_parameters(page: Any) -> None:
    wrong = {
        "temperature": ["-0.1", "x"], "top_p": ["0", "1.01"], "top_k": ["-1", "1.5"],
        "min_p": ["2"], "max_tokens": ["0", "4097"], "presence_penalty": ["-2.1", "3"],
        "repetition_penalty": ["0"], "seed": ["1.5", "-1", "9007199254740993"],
    }  # fmt: skip
    right = {"temperature": ["", "0", "7"], "top_p": ["1"], "max_tokens": ["4096"], "seed": ["0"]}
    for table, expected in ((wrong, True), (right, False)):
        for name, values in table.items():
            for value in values:
                found = module(
                    page, "parameters", "m.problemOfNumber(...argument)", [name, value, 4096]
                )
                assert (found is not None) is expected, (name, value)
    body = module(
        page,
        "parameters",
        "m.bodyOf(argument)",
        {
            "temperature": "0", "top_p": "", "seed": "5", "stop": "END\n\\n\\n", "logprobs": True,
            "format": "schema", "schema": '{"type": "object"}', "tools": "[]", "system": "s",
        },
    )  # fmt: skip
    assert body.pop("response_format")["json_schema"]["schema"] == {"type": "object"}
    assert body == {
        "temperature": 0, "seed": 5, "stop": ["END", "\n\n"], "logprobs": True, "top_logprobs": 8,
        "tools": [],
    }  # fmt: skip
    for name, text in (("Schema", "[]"), ("Schema", "{"), ("Tools", "{}"), ("Tools", "[{}]"),
                       ("Stops", "a\n" * 65), ("Stops", "a" * 4097)):  # fmt: skip
        assert module(page, "parameters", f"m.problemOf{name}(argument)", text), (name, text[:9])


def test_conversations_are_exported_and_imported(page: Any) -> None:
    body = """(() => {
        const store = new m.Conversations();
        const talk = {...m.newConversation({seed: '1'}), title: 'A',
            messages: [{role: 'user', content: 'x'}]};
        store.keep(talk);
        const text = store.exported();
        store.remove(talk.id);
        const left = new m.Conversations().all.length;
        const count = store.imported(text);
        const [back] = new m.Conversations().all;
        store.remove(back.id);
        return [left, count, back.title, back.messages, back.id !== talk.id];
    })()"""
    left, count, title, messages, is_new = module(page, "conversations", body)
    assert (left, count, title, is_new) == (0, 1, "A", True)
    assert messages == [{"role": "user", "content": "x"}]
    for text in ("", "[]", "{}", '{"format": "octavo-conversations"}'):
        body = (
            "(() => { try { new m.Conversations().imported(argument) } catch { return 'no' } })()"
        )
        assert module(page, "conversations", body, text) == "no"
    odd_role = {"id": "a", "title": "", "parameters": {}, "messages": [{"role": "admin"}]}
    odd = {"format": "octavo-conversations", "conversations": [odd_role, None, 3]}
    body = "new m.Conversations().imported(argument)"
    assert module(page, "conversations", body, json.dumps(odd)) == 0


def test_odd_conversations_cannot_break_the_page(page: Any) -> None:
    odd = {
        "role": "assistant", "content": 5, "toolCalls": [None], "tokens": [3], "usage": {},
        "error": {"code": {}}, "seconds": "x", "other": 1,
    }  # fmt: skip
    talk = {"id": "a", "title": "t", "parameters": {"seed": {}, "stop": "x"}, "messages": [odd]}
    clean = module(page, "conversations", "m.cleaned(argument)", talk)
    assert clean["parameters"] == {"stop": "x"}
    [message] = clean["messages"]
    assert "other" not in message
    assert message["content"] == ""
    assert message["toolCalls"][0]["function"]["name"] == "undefined"
    view = """(() => new m.AnswerView(argument, {isLast: true}).root.textContent)()"""
    assert "did not work" in module(page, "transcript", view, message)


def test_latencies_and_throughput(page: Any) -> None:
    """One request arrives at 1.0 and has outputs at 1.5, 1.7 and 2.7."""
    view = {
        "now": 3.0,
        "requests": [{"index": 4, "arrival": 1.0}, {"index": 3, "arrival": 0.1}],
        "steps": [
            [0, 1.0, 1.1, 1, 0, 10, [[4, 8, 0, 0, False], [3, 0, 1, 0, True]]],
            [1, 1.1, 1.5, 1, 0, 11, [[4, 8, 0, 0, True]]],
            [2, 1.5, 1.7, 1, 0, 12, [[4, 0, 1, 0, True]]],
            [3, 1.7, 2.7, 1, 0, 15, [[4, 0, 1, 2, True]]],
        ],
    }
    body = """(() => {
        const history = new m.History();
        history.add(argument);
        history.add({...argument, steps: []});
        return [history.latencies(3, true, 2), history.latencies(3, false, 2),
            history.throughput(3, 2), history.lastStep, history.steps.map(s => s.tokens),
            (history.add({...argument, steps: [], stats: {num_steps: 2}}), history.lastStep)];
    })()"""
    first, between, throughput, last, tokens, after_restart = module(
        page, "engine_state", body, view
    )
    assert first[-1] == [0.5, 0.5], "a request watched from its middle on has no first token"
    assert between[-1] == [pytest.approx(0.2), pytest.approx(1.0)]
    assert throughput == [[2, 16], [3, 0]]
    assert (last, tokens) == (3, [9, 8, 1, 3])
    assert after_restart == -1, "steps of another engine"
    assert module(page, "engine_state", "m.percentile([1, 2, 3, 4], 0.5)") == 2


def test_what_nobody_saw_is_not_made_up(page: Any) -> None:
    """After half a minute without a look there is neither a latency nor a speed across the gap, and
    what was made before the first look is no speed."""
    views = [
        {"now": 10.0, "requests": [], "steps": [], "stats": {"generation_tokens": 800}},
        {"now": 10.5, "requests": [{"index": 0, "arrival": 10.1}],
         "steps": [[0, 10.1, 10.2, 1, 0, 801, [[0, 8, 0, 0, True]]]]},
        {"now": 40.0, "requests": [{"index": 0, "arrival": 10.1}, {"index": 1, "arrival": 30.0}],
         "steps": [[500, 39.0, 39.5, 2, 0, 901, [[0, 0, 1, 0, True], [1, 0, 1, 0, True]]],
                   [501, 39.5, 39.75, 2, 0, 903, [[0, 0, 1, 0, True], [1, 0, 1, 0, True]]]]},
    ]  # fmt: skip
    body = """(() => {
        const history = new m.History();
        argument.forEach(view => history.add(view));
        return [history.latencies(40, true), history.latencies(40, false), history.throughput(40)];
    })()"""
    first, between, throughput = module(page, "engine_state", body, views)
    assert [row[0] for row in first if row[0]] == [pytest.approx(0.1)] * 5
    assert {row[0] for row in between} == {None, 0.25}
    assert sum(row[0] for row in throughput) == 1 + 2


def test_a_small_probability_has_the_last_colour(page: Any) -> None:
    shades = module(page, "tokens", "argument.map(m.shade)", [1, 0.9, 0.89, 0.3, 0.1, 0.09, 0])
    assert shades == [4, 4, 3, 2, 1, 0, 0]


def test_an_unknown_word_is_an_error(page: Any) -> None:
    body = "(() => { try { return m.t('no.such.words') } catch (e) { return e.message } })()"
    assert "no.such.words" in module(page, "i18n", body)


def test_the_cursor_is_where_the_text_goes_on(page: Any) -> None:
    body = """(async () => {
        const { renderMarkdown } = await import(new URL('./markdown.js', script));
        return m.placeOfWriting(renderMarkdown(argument, m.codeBlock).at(-1)).outerHTML;
    })()"""
    for text, place in (
        ("one *two*", "<p>one <em>two</em></p>"),
        ("a `b`", "<p>a <code>b</code></p>"),
        ("```py\nx = ", "<code>x = </code>"),
        ("- a\n- b\n  - c", "<li>c</li>"),
        ("> a", "<p>a</p>"),
        ("---", "<hr>"),
    ):
        assert module(page, "transcript", body, text) == place
