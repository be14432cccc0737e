from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import _compile_jinja_template

from octavo.engine import chat_template
from octavo.engine.chat_template import ChatTemplate
from octavo.engine.template_sandbox import MAX_VALUE, LimitExceededError, weight_of
from octavo.errors import ChatTemplateError
from tests.engine.tokenizer_lab import CHATML

MESSAGES = [
    {"role": "system", "content": " be\nbrief "},
    {"role": "user", "content": "Hi <b>'you'</b> & é 👍", "n": 3},
    {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {"a": [1.5]}}]},
    {"role": "tool", "content": "20°"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"b": None, "a": True}}}]

FEATURES = {
    "chatml": CHATML,
    "whitespace": "{% for m in messages %}\n    {% if m.n %}\n    x\n    {% endif %}"
    "\n{% endfor %}\n  end\n",
    "loops": "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.first }}"
    "{{ loop.last }}"
    "{{ loop.previtem.role if loop.previtem }}{{ loop.nextitem.role if loop.nextitem }}"
    "{% if loop.index0 == 2 %}{% break %}{% else %}{% continue %}{% endif %}{% endfor %}",
    "filtered loop": "{% for m in messages if m.content|trim %}{{ m.role }}{% else %}"
    "none{% endfor %}",
    "empty loop": "{% for m in [] %}x{% else %}none{% endfor %}",
    "unpacking": "{% for k, v in messages[1].items() %}{{ k }}={{ v }};{% endfor %}",
    "recursion": "{% for x in [[1, [2]], 3] recursive %}{% if x is iterable %}({{ loop(x) }})"
    "{% else %}{{ x }}{% endif %}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0, t='') %}{% for m in messages %}"
    "{% set ns.n = ns.n + 1 %}"
    "{% set ns.t = ns.t ~ m.role ~ ns.n %}{% endfor %}{{ ns.t }}",
    "macro": "{% macro show(m, end='.') %}{{ m.role ~ end }}{{ caller() if caller }}{% endmacro %}"
    "{{ show(messages[0]) }}{% call show(messages[1], end='!') %}called{% endcall %}",
    "set block": "{% set x %}a{{ messages|length }}{% endset %}[{{ x }}]",
    "filter block": "{% filter upper %}a{{ messages[0].role }}{% endfilter %}",
    "tojson": "{{ tools|tojson }}{{ tools|tojson(indent=2) }}{{ messages[1].content|tojson }}"
    "{{ tools|tojson(sort_keys=true, separators=(',', ':')) }}"
    "{{ messages[1].content|tojson(ensure_ascii=true) }}",
    "strings": "{{ 'a-b'.split('-') }}{{ 'x' * 3 }}{{ '%s|%d|12345' % ('a', 5) }}"
    "{{ '{}:{:>4}'.format(1, 2) }}"
    "{{ 'abc'.replace('b', 'BB') }}{{ ', '.join(['a', 'b']) }}{{ ' x '.strip() }}"
    "{{ 'a'.ljust(3) }}|",
    "filters": "{{ messages|map(attribute='role')|join(', ') }}"
    "{{ messages|selectattr('n')|list|length }}"
    "{{ messages|rejectattr('role', 'equalto', 'user')|map(attribute='role')|list }}"
    "{{ [3, 1, 2]|sort|first }}{{ 'a b'|title }}{{ none|default('d', true) }}"
    "{{ {'b': 1}|items|list }}"
    "{{ {'b': 1, 'a': 2}|dictsort }}{{ [1, 2]|sum }}{{ messages|groupby('role')|length }}"
    "{{ 'x'|indent(2, true) }}{{ [1, 2, 3]|batch(2)|list }}{{ 3.7|round|int }}"
    "{{ 'a\nb'|replace('\n', ' ') }}",
    "tests": "{{ x is defined }}{{ 5 is odd }}{{ 'a' in 'abc' }}{{ messages is sequence }}"
    "{{ 'a' is string }}",
    "slices": "{{ messages[1:]|length }}{{ 'abc'[::-1] }}{{ messages[-1].role }}{{ (1, 2)[0] }}",
    "arithmetic": "{{ 7 // 2 }}{{ 7 % 3 }}{{ 2 ** 5 }}{{ 1.5 * 2000000 }}{{ -3 + 1 }}"
    "{{ [1] + [2] }}"
    "{{ 'a' + 'b' }}",
    "inline if": "{{ 'a' if messages else 'b' }}{{ 'a' if not messages }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}"
    "{% endfor %}",
    "undefined": "{{ nothing }}{% if nothing %}x{% endif %}{{ messages[0].nothing }}",
    "dict": "{% set d = dict(a=1) %}{{ d.get('a') }}{{ d.get('b', 'no') }}{{ {'k': [1]}['k'][0] }}",
    "print of containers": "{{ messages[1] }}{{ [1, 'a', none, true] }}",
}


@pytest.mark.parametrize("source", FEATURES.values(), ids=FEATURES.keys())
def test_renders_as_transformers(source: str) -> None:
    variables = {"messages": MESSAGES, "tools": TOOLS, "add_generation_prompt": True}
    expected = _compile_jinja_template(source).render(**variables)
    assert ChatTemplate(source).render(variables) == expected


def test_time_of_day() -> None:
    text = ChatTemplate("{{ strftime_now('%Y') }}").render({})
    assert abs(int(text) - datetime.now().year) <= 1


def test_json_escapes_spare_plane_15() -> None:
    value = "é\U000f0001👍\n"
    text = ChatTemplate("{{ x|tojson(ensure_ascii=true) }}").render({"x": value})
    assert text == '"\\u00e9\U000f0001\\ud83d\\udc4d\\n"'
    assert json.loads(text) == value


# ---------------------------------------------------------------- bombs

GROW = "{% set ns = namespace(x=START) %}{% for i in range(200) %}{% set ns.x = STEP %}{% endfor %}"


def grow(start: str, step: str, end: str = "") -> str:
    return GROW.replace("START", start).replace("STEP", step) + end


BIG = "{% set big = 'x' * 60000 %}"
BOMBS = {
    "one loop": "{% for i in range(1000000000) %}{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
    "{% endfor %}",
    "nested loops, filtered": "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}"
    "{% endfor %}{% endfor %}",
    "recursive loop": "{% for i in range(99) recursive %}{{ loop(range(99)) if loop.depth < 9 }}"
    "{% endfor %}",
    "macros": "{% macro a() %}{% endmacro %}{% macro b() %}"
    + "{{ a() }}" * 99
    + "{% endmacro %}{% macro c() %}"
    + "{{ b() }}" * 99
    + "{% endmacro %}{% macro d() %}"
    + "{{ c() }}" * 99
    + "{% endmacro %}"
    + "{{ d() }}" * 99,
    "silent text": "{% set x %}{% for i in range(99999) %}"
    + "y" * 9999
    + "{% endfor %}{% endset %}",
    "lazy filters": "{{ range(99999)|map('center', 99999)|join }}",
    "lazy filters in loops": "{% for i in range(99999) %}{{ range(99999)|map('abs')|first }}"
    "{% endfor %}",
    "times": "{{ 'a' * 10**9 }}",
    "times, turned round": "{{ 10**9 * 'a' }}",
    "list times": "{{ [0] * 10**9 }}",
    "power": "{{ 10**10**10 }}",
    "many factors": grow("3", "ns.x * ns.x"),
    "tilde": grow("'ab'", "ns.x ~ ns.x"),
    "plus": grow("'ab'", "ns.x + ns.x"),
    "lists plus": grow("[1]", "ns.x + ns.x"),
    "format": grow("'ab'", "'%s%s' % (ns.x, ns.x)"),
    "format method": grow("'ab'", "'{0}{0}'.format(ns.x)"),
    "format filter": grow("'ab'", "'%s%s'|format(ns.x, ns.x)"),
    "join": grow("'ab'", "[ns.x, ns.x]|join"),
    "join method": grow("'ab'", "ns.x.join(['', '', ''])"),
    "replace": grow("'ab'", "ns.x.replace('a', 'aa').replace('b', 'bb')"),
    "nested lists": grow("[1]", "[ns.x, ns.x]", "{{ ns.x }}"),
    "nested tuples": grow("(1,)", "(ns.x, ns.x)", "{{ ns.x == ns.x }}"),
    "nested dicts": grow("{}", "{'a': ns.x, 'b': ns.x}", "{{ ns.x|tojson }}"),
    "nested by filter": grow("[1]", "{'a': ns.x, 'b': ns.x}.values()|list"),
    "nested by call": grow("{}", "dict(a=ns.x, b=ns.x)"),
    "blocks": "{% set x = 'ab' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
    "center": "{{ 'a'|center(10**9) }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "tabs": "{{ ('\t' * 9999).expandtabs(99999) }}",
    "translate": BIG + "{{ big.translate({120: big}) }}",
    "bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "indent": "{{ ('\n' * 9999)|indent(99999) }}",
    "json indent": "{{ range(9999)|list|tojson(indent=99999) }}",
    "batch": "{{ [1]|batch(10**8, 0)|list }}",
    "slice": "{{ [1]|slice(10**8)|list }}",
    "round": "{{ (5)|round(-10**9) }}",
    "replace nothing": BIG + "{{ big.replace('', big) }}",
    "replace filter": BIG + "{{ big|replace('x', big) }}",
    "separator": BIG + "{{ big.join(range(99999)|map('string')) }}",
    "separator of a view": BIG
    + "{{ big.join(dict.fromkeys(range(99999)|map('string')|list).keys()) }}",
    "join filter": BIG + "{{ range(99999)|join(big) }}",
    "width": "{{ '%999999999d' % 1 }}",
    "width by value": "{{ '%*d' % (999999999, 1) }}",
    "width in braces": "{{ '{:999999999}'.format(1) }}",
    "nested width": "{{ '{:{}}'.format(1, 999999999) }}",
    "width by map": "{{ '{a:999999999}'.format_map({'a': 1}) }}",
    "width by filter": "{{ '%999999999d'|format(1) }}",
    "fields": BIG + "{{ ('{0}' * 9999).format(big) }}",
    "sum of lists": "{{ range(99999)|batch(1)|sum(start=[]) }}",
    "strftime": BIG + "{{ strftime_now(big) }}",
    "output": BIG + "{% for i in range(99999) %}{{ big }}{% endfor %}",
    "constant": "{{ 'a'|center(10**9)|length }}",
    "constant condition": "{% if 'a' * 10**9 %}{% endif %}",
}


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS.keys())
def test_bombs_are_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.2)
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate(source).render({})
    assert re.search("was stopped|Range too big|sum is for numbers", str(caught.value))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_bombs_take_little_memory() -> None:
    """All of them, in a process that may take 512 MiB: none gets as far as a MemoryError."""
    script = (
        "import json, resource, sys\n"
        "from octavo.engine import chat_template\n"
        "from octavo.errors import ChatTemplateError\n"
        "chat_template.MAX_SECONDS = 0.1\n"
        "chat_template._environment()\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20),) * 2)\n"
        "for name, source in json.load(sys.stdin).items():\n"
        "    try:\n"
        "        chat_template.ChatTemplate(source).render({})\n"
        "    except ChatTemplateError as error:\n"
        "        if 'MemoryError' in str(error):\n"
        "            print(name)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(BOMBS),
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == ""


def test_a_long_chat_is_no_bomb() -> None:
    messages = [{"role": "user", "content": "word " * 2000}] * 400  # 4 million characters
    text = ChatTemplate(CHATML).render({"messages": messages, "add_generation_prompt": False})
    assert len(text) > 4_000_000


def test_weight() -> None:
    assert weight_of("abc") == 256 + 3
    assert weight_of(["abc", {"k": 1}]) == 256 + (256 + 3) + (256 + (256 + 1) + 256)
    value: Any = "x"
    for _ in range(60):
        value = [value, value]
    with pytest.raises(LimitExceededError):
        weight_of(value)
    with pytest.raises(LimitExceededError):
        weight_of("x" * (MAX_VALUE + 1))
