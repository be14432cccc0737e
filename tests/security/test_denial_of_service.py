"""What one request may cost: templates, regular expressions, counts, sizes
(CVE-2025-61620, CVE-2025-48944, CVE-2026-34756, CVE-2025-48956).

Each part has its own tests of bombs (`engine/test_template_sandbox.py`,
`engine/test_stop_regex.py`, `structured/test_probe.py`, `entrypoints/openai/test_parsing.py`): here
it is the whole way, over HTTP.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from octavo.engine import chat_template
from octavo.engine.chat_template import ChatTemplate
from octavo.entrypoints.openai.http_server import HTTPProtocol
from octavo.errors import ChatTemplateError
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import close, eventually, serving

HUGE = 10**30
TOO_MUCH: list[dict[str, Any]] = [
    {"n": 10**6},
    {"n": HUGE},
    {"best_of": 10**6},
    {"max_tokens": HUGE},
    {"max_tokens": 10**9},
    {"logprobs": 10**6},
    {"prompt_logprobs": 10**6},
    {"min_tokens": 10**9},
    {"stop": ["x"] * 10_000},
    {"stop_token_ids": list(range(100_000))},
    {"stop": "x" * 10**6},
    {"bad_words": ["x y"] * 100_000},
    {"logit_bias": {str(i): 1 for i in range(100_000)}},
    {"allowed_token_ids": list(range(10**6))},
    {"stop_regex": "(a{1000}){1000}"},
    {"stop_regex": "(a?){500}a{500}"},
    {"stop_regex": "(" * 5000 + "a" + ")" * 5000},
    {"repetition_detection": {"max_pattern_size": HUGE, "min_count": 2}},
    {"repetition_detection": {"max_pattern_size": 10**9, "min_pattern_size": 1, "min_count": 2}},
    {"thinking_token_budget": HUGE},
    {"cache_salt": "x" * 10**6},
    {"request_id": "x" * 10**6},
    {"prompt": [[1]] * 100_000},
    {"prompt": "x" * 10**6},
    {"seed": HUGE},
    {"temperature": 1e308},
    {"stream_interval": HUGE},
    {"max_time_ms": HUGE},
]


@pytest.mark.parametrize("fields", TOO_MUCH, ids=lambda f: f"{next(iter(f))}")
async def test_counts_and_sizes(fields: dict[str, Any]) -> None:
    """Refused by name, quickly, and others are answered meanwhile."""
    async with serving() as s:
        started = time.monotonic()
        reply, other = await asyncio.gather(s.completion(**fields), s.completion("SAY:ok"))
        assert time.monotonic() - started < 10
        assert reply.status == 400, reply.body[:200]
        name = next(iter(fields))
        assert name in (reply.error["param"] or reply.error["message"])
        assert len(reply.body) < 2000
        assert other.status == 200


async def test_regular_expressions_take_linear_time() -> None:
    """What takes a backtracking engine for ever."""
    async with serving(FakeEngine(max_model_len=20_000)) as s:
        for pattern in ("(a+)+b", "(a|a)*c", "(a*)*b", "([a-z]+)*0"):
            started = time.monotonic()
            reply = await s.completion("SAY:" + "a" * 3000, max_tokens=4000, stop_regex=pattern)
            assert reply.status == 200, reply.body
            assert time.monotonic() - started < 20


BOMBS = [
    "{% for i in range(999999999) %}x{% endfor %}",
    "{{ 'a' * 10**10 }}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
    "{% endfor %}{{ ns.x }}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{{ range(10**9)|list|length }}",
]
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self._TemplateReference__context }}",
    "{{ messages.__class__.__base__ }}",
    "{{ (lipsum|attr('__globals__'))['os'].system('id') }}",
    "{{ '%s'|format(messages.__init__.__globals__) }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.system('id') }}",
    "{{ messages.append(1) }}",
]


def rendered(source: str) -> str:
    return ChatTemplate(source).render({"messages": [{"role": "user", "content": "x"}]})


@pytest.mark.parametrize("source", BOMBS)
def test_template_bombs(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's template comes from whoever made the file."""
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 1.0)
    started = time.monotonic()
    with pytest.raises(ChatTemplateError):
        rendered(source)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("source", ESCAPES)
def test_templates_that_want_to_get_out(source: str) -> None:
    try:
        text = rendered(source)
    except ChatTemplateError:
        return
    assert text == ""  # what they may not see is undefined


async def test_connections_that_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slowloris: whoever holds connections open gets no more of them than leaves room for others;
    what is being answered goes on."""
    async with serving() as s:
        monkeypatch.setattr(HTTPProtocol.connections_of_process, "most", 8)
        fields = {"stream": True, "max_tokens": 5, "ignore_eos": True}
        s.engine.gate.clear()
        streamed = asyncio.ensure_future(s.completion("count", **fields))
        await eventually(lambda: s.engine.num_unfinished)
        lines = []
        for i in range(30):
            lines.append(await s.connect())
            lines[-1][1].write((b"", b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: ")[i % 2])
        assert (await s.get("/health")).status == 200
        for reader, _ in lines[:20]:
            assert await asyncio.wait_for(reader.read(), 5) == b""
        s.engine.gate.set()
        assert len((await streamed).events) > 1
        for _, writer in lines:
            await close(writer)


async def test_chats_of_many_small_values() -> None:
    """Who looks at each holds the interpreter, and with it the event loop."""
    many = [""] * 300_000
    user = [{"role": "user", "content": "SAY:x"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": ""}] * 60_000}]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"enum": many}}}
    async with serving() as s:
        for name, body in (
            ("chat_template_kwargs", {"messages": user, "chat_template_kwargs": {"x": many}}),
            ("tools", {"messages": user, "tools": [tool]}),
            ("messages", {"messages": parts}),
        ):
            reply = await s.post("/v1/chat/completions", body)
            assert (reply.status, reply.error["param"]) == (400, name)
            assert "more than 262144 values" in reply.error["message"]
