from __future__ import annotations

import threading
from typing import Any

import pytest

from octavo.engine.chat_template import MAX_OUTPUT_CHARS, MAX_SOURCE_CHARS, ChatTemplate
from octavo.errors import ChatTemplateError
from tests.engine.tokenizer_lab import CHATML

USER = {"role": "user", "content": "Hi"}


def test_render() -> None:
    template = ChatTemplate(CHATML)
    text = template.render({"messages": [USER], "add_generation_prompt": True})
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_raise_exception_passes_on_its_message_fit_to_be_shown() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate: ' ~ x) }}")
    with pytest.raises(ChatTemplateError, match="refuses the messages: ROLES MUST ALTERNATE: U"):
        template.render({"x": "u"}, show=str.upper)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ missing.field }}", "UndefinedError"),
        ("{{ messages[0]['content'] + 5 }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% include 'other' %}", "failed"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_failures_are_the_requests_errors(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(source).render({"messages": [USER]})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ x|no_such_filter }}", "no_such_filter"),
        ("{% if x %}", "TemplateSyntaxError"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "not valid"),
        ("x" * (MAX_SOURCE_CHARS + 1), "1048577 characters"),
    ],
)
def test_templates_that_are_none(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(source).compile()


def test_output_is_bounded() -> None:
    source = "{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}"
    with pytest.raises(ChatTemplateError, match=f"more than {MAX_OUTPUT_CHARS} characters"):
        ChatTemplate(source).render({})


def test_threads_do_not_share_limits() -> None:
    """Each of many renders at once has a whole budget, and one that is stopped stops no other."""
    template = ChatTemplate(CHATML)
    bomb = ChatTemplate(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    )
    variables: dict[str, Any] = {"messages": [USER] * 300, "add_generation_prompt": False}
    expected = template.render(variables)
    results: list[Any] = []

    def work(number: int) -> None:
        try:
            results.append((bomb if number == 0 else template).render(variables) == expected)
        except ChatTemplateError as error:
            results.append(str(error))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count(True) == 3
    assert any("was stopped" in str(r) for r in results)
