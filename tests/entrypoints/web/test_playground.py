"""The playground as a person uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.fake_tokenizer import FakeTokenizer
from tests.entrypoints.openai.harness import Running
from tests.entrypoints.web.lab import in_thread, page_of, screenshot

pytestmark = pytest.mark.slow

ANSWER = """Here is **one** way:

```python
def reverse(items):
    return items[::-1]
```

- it copies
- it is short"""


def thinking_engine() -> FakeEngine:
    """Reasons as Qwen does, and is slow enough to be stopped."""
    tokenizer = FakeTokenizer(
        chat_template_source="<think></think><tool_call>", specials=["<think>", "</think>"]
    )
    return FakeEngine(tokenizer=tokenizer, step_seconds=0.004)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with in_thread(thinking_engine, reasoning_parser="qwen3", tool_call_parser="hermes") as s:
        yield s


@pytest.fixture
def page(chromium: Any, server: Running) -> Iterator[Any]:
    with page_of(chromium, f"{server.url}/") as opened:
        opened.wait_for_selector("body[data-ready]")
        yield opened


def ask(page: Any, text: str, *, answers: int = 1) -> Any:
    """Send a message and wait for the end of the answer. Returns it."""
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    page.wait_for_selector(f":nth-match(.message.assistant .facts:not(:empty), {answers})")
    return page.locator(".message.assistant").last


def sent(page: Any) -> list[dict[str, Any]]:
    """Bodies of the chats that the page sends from now on."""
    bodies: list[dict[str, Any]] = []
    page.on(
        "request",
        lambda r: bodies.append(json.loads(r.post_data)) if r.url.endswith("completions") else None,
    )
    return bodies


def test_a_chat_is_streamed_and_drawn(page: Any) -> None:
    message = ask(page, f"Reverse a list. SAY:<think>Slices do it.</think>{ANSWER}")
    assert message.locator(".prose strong").first.inner_text() == "one"
    assert message.locator(".codeblock code").inner_text().startswith("def reverse")
    assert message.locator(".prose li").all_inner_texts() == ["it copies", "it is short"]
    assert message.locator(".reasoning").get_attribute("open") is None
    message.locator(".reasoning summary").click()
    assert message.locator(".reasoning .prose").inner_text() == "Slices do it."
    assert "tokens/s" in message.locator(".facts").inner_text()
    assert "complete" in page.locator("#status").inner_text()
    screenshot(page, "playground-en-light")
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.locator(".prose strong").first.inner_text() == "one"


def test_what_a_model_writes_is_text(page: Any) -> None:
    message = ask(page, "SAY:<img src=x onerror=alert(1)><script>alert(2)</script>")
    assert message.locator("img, script").count() == 0
    assert message.locator(".content").inner_text().startswith("<img src=x")


def test_tokens_and_their_alternatives(page: Any) -> None:
    page.check("#p-logprobs")
    bodies = sent(page)
    message = ask(page, "SAY:abc")
    assert bodies[0]["top_logprobs"] == 8
    message.locator(".tokens-switch").click()
    tokens = message.locator(".tokens .token")
    assert tokens.all_inner_texts()[:3] == ["a", "b", "c"]
    tokens.first.focus()
    page.keyboard.press("ArrowRight")
    tip = page.locator("#token-tip")
    assert tip.locator(".chosen").inner_text() == "b"
    assert tip.locator(".fill").count() >= 8
    assert page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "token-tip"
    page.keyboard.press("Escape")
    assert tip.count() == 0
    tokens.nth(2).hover()
    assert tip.locator(".chosen").inner_text() == "c"
    screenshot(page, "playground-tokens")


def test_stop_edit_and_again(page: Any) -> None:
    page.fill("#p-max_tokens", "3000")
    page.fill("#prompt", "count")
    page.press("#prompt", "Enter")
    page.wait_for_selector(".message.assistant .content p")
    page.keyboard.press("Escape")
    page.wait_for_selector(".facts:not(:empty)")
    assert "stopped" in page.locator(".facts").inner_text()
    page.get_by_role("button", name="Edit").click()
    page.fill(".editor textarea", "SAY:first#")
    page.locator(".editor button").first.click()
    page.wait_for_selector(".message.assistant:has-text('first0') .facts:not(:empty)")
    assert page.locator(".message").count() == 2
    page.get_by_role("button", name="Again").click()
    assert page.evaluate("document.activeElement.id") == "send"
    page.wait_for_selector(".message.assistant:has-text('first0') .facts:not(:empty)")
    assert page.locator(".message").count() == 2


def test_a_tool_is_called_and_answered(page: Any) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
    bodies = sent(page)
    page.get_by_text("Tools", exact=True).click()
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    page.fill("#p-tools", json.dumps(tools))
    message = ask(page, f"SAY:{call}")
    assert "weather" in message.locator(".toolcall summary").inner_text()
    assert '"Oslo"' in message.locator(".toolcall pre").inner_text()
    message.locator(".toolcall textarea").fill("SAY:cold")
    message.locator(".toolcall button").click()
    page.wait_for_selector(".message.assistant:has-text('cold') .facts:not(:empty)")
    roles = [m["role"] for m in bodies[-1]["messages"]]
    assert roles == ["user", "assistant", "tool"]


def test_json_by_a_schema(page: Any) -> None:
    bodies = sent(page)
    page.get_by_label("JSON by a schema").check()
    page.fill("#p-schema", '{"type": ')
    assert "No valid JSON" in page.locator("#schema-problem").inner_text()
    page.fill("#prompt", "SAY:x")
    page.press("#prompt", "Enter")
    assert "out of range" in page.locator("#status").text_content()
    assert not bodies
    page.fill("#p-schema", '{"type": "object"}')
    page.fill("#prompt", "SAY:{}")
    page.press("#prompt", "Enter")
    page.wait_for_selector(".facts:not(:empty)")
    assert bodies[0]["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_errors_are_told_in_a_persons_words(page: Any, server: Running) -> None:
    page.fill("#prompt", "FAIL:")
    page.press("#prompt", "Enter")
    page.wait_for_selector(".notice")
    assert "did not work" in page.locator(".notice").inner_text()
    assert "this request met an error" in page.locator(".notice").inner_text()


def test_a_conversation_too_long(chromium: Any, server: Running) -> None:
    with page_of(chromium, f"{server.url}/", complaints=("status of 400",)) as page:
        page.wait_for_selector("body[data-ready]")
        page.fill("#prompt", "x" * 5000)
        page.press("#prompt", "Enter")
        page.wait_for_selector(".notice")
        assert "too long for this model" in page.locator(".notice").inner_text()


def test_a_stream_that_breaks_off_is_told(page: Any) -> None:
    event = {"choices": [{"index": 0, "delta": {"content": "half an ans"}}]}
    body = f"data: {json.dumps(event)}\n\n"
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=200, content_type="text/event-stream", body=body),
    )
    page.fill("#prompt", "SAY:x")
    page.press("#prompt", "Enter")
    page.wait_for_selector(".notice")
    assert page.locator(".content").inner_text() == "half an ans"
    assert "broke off" in page.locator(".notice").inner_text()


def test_what_is_deleted_stays_deleted(page: Any) -> None:
    """Also where its answer was still coming."""
    page.fill("#prompt", "count")
    page.press("#prompt", "Enter")
    page.wait_for_selector(".message.assistant .content p")
    page.locator(".conversation .more").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.wait_for_selector(".welcome")
    page.wait_for_timeout(100)
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.locator(".conversation").count() == 0


def test_conversations(page: Any, tmp_path: Path) -> None:
    ask(page, "SAY:one")
    page.click("#new")
    ask(page, "SAY:two")
    from playwright.sync_api import expect

    names = page.locator(".conversation .name")
    expect(names).to_have_text(["SAY:two", "SAY:one"])
    names.nth(1).click()
    expect(page.locator(".bubble")).to_have_text("SAY:one")
    page.locator(".conversation .more").nth(1).click()
    page.fill("#rename", "The first")
    page.get_by_role("button", name="Rename", exact=True).click()
    expect(names).to_have_text(["SAY:two", "The first"])
    with page.expect_download() as download:
        page.click("#export")
    path = tmp_path / "kept.json"
    download.value.save_as(path)
    page.locator(".conversation .more").nth(1).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(names).to_have_text(["SAY:two"])
    page.set_input_files("#import-file", path)
    page.wait_for_selector(":nth-match(.conversation, 3)")
    assert "The first" in names.all_inner_texts()


def test_the_key_is_asked_for_and_kept(chromium: Any) -> None:
    with (
        in_thread(api_key=["sesame"]) as s,
        page_of(chromium, f"{s.url}/", complaints=("status of 401",)) as page,
    ):
        page.fill("#key-value", "wrong")
        page.press("#key-value", "Enter")
        page.wait_for_selector("#key-value:visible")
        page.fill("#key-value", "sesame")
        page.press("#key-value", "Enter")
        page.wait_for_selector("body[data-ready]")
        assert ask(page, "SAY:open").locator(".content").inner_text() == "open"
        stored = page.evaluate("[sessionStorage['octavo.key'], localStorage['octavo.key']]")
        assert stored == ["sesame", None]
        page.reload()
        page.wait_for_selector("body[data-ready]")
        page.click("#key")
        page.check("#key-stays")
        page.press("#key-value", "Enter")
        stored = page.evaluate("[sessionStorage['octavo.key'], localStorage['octavo.key']]")
        assert stored == [None, "sesame"]


def test_without_a_mouse(page: Any) -> None:
    """From the top of the page to an answer's tokens, by keys alone."""
    on = "box => { box.checked = true; box.dispatchEvent(new Event('change')); }"
    page.locator("#p-logprobs").evaluate(on)

    def focused() -> str:
        what = "(e => e.id || e.className || e.textContent)(document.activeElement)"
        return str(page.evaluate(what))

    def tab_to(name: str, most: int = 40) -> list[str]:
        seen = []
        for _ in range(most):
            page.keyboard.press("Tab")
            seen.append(focused())
            if name in seen[-1]:
                return seen
        raise AssertionError(f"Tab does not reach {name}: {seen}")

    page.keyboard.press("Tab")
    assert focused() == "skip"
    page.keyboard.press("Enter")
    assert focused() == "prompt"
    page.keyboard.type("SAY:xyz")
    page.keyboard.press("Enter")
    page.wait_for_selector(".facts:not(:empty)")
    for _ in range(12):
        page.keyboard.press("Shift+Tab")
        if "tokens-switch" in focused():
            break
    page.keyboard.press("Enter")
    assert "tokens-switch" in focused(), "the button keeps the focus"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    assert focused().startswith("token ")
    page.keyboard.press("ArrowRight")
    assert page.locator("#token-tip .chosen").inner_text() == "y"
    order = tab_to("p-max_tokens")
    assert order.index("prompt") < order.index("send") < order.index("p-system")


ROOM_FOR_A_MODEL = """(name) => {
    const picker = document.querySelector("#model");
    const probe = picker.cloneNode(true);
    probe.options[0].text = name;
    probe.style.cssText = "position: absolute; width: max-content; max-width: none";
    picker.after(probe);
    const room = picker.offsetWidth - probe.offsetWidth;
    probe.remove();
    return room;
}"""
"""Pixels of the picker that such a name leaves."""


def test_languages_themes_and_a_phone(chromium: Any, server: Running) -> None:
    with page_of(
        chromium, f"{server.url}/", language="zh-CN", theme="dark", width=360, height=700
    ) as page:
        page.wait_for_selector("body[data-ready]")
        assert page.evaluate("document.documentElement.lang") == "zh-CN"
        assert page.title() == "Octavo · 对话"
        ask(page, f"SAY:{ANSWER}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate(ROOM_FOR_A_MODEL, "smollm2-135m") >= 0, "the model's name is cut"
        assert page.locator("#parameters").is_hidden()
        page.click("header [aria-controls=parameters]")
        assert page.locator("#p-temperature").is_visible()
        screenshot(page, "playground-zh-dark-phone")
        page.keyboard.press("Escape")
        assert page.locator("#parameters").is_hidden()
        focused = "document.activeElement.getAttribute('aria-controls')"
        assert page.evaluate(focused) == "parameters", "the focus goes back to where it came from"
        page.set_viewport_size({"width": 1280, "height": 860})
        screenshot(page, "playground-zh-dark")
        page.click("#theme")
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        page.select_option("#language", "en")
        assert page.get_by_role("button", name="Again").is_visible()
        page.reload()
        page.wait_for_selector("body[data-ready]")
        kept = "[document.documentElement.dataset.theme, document.documentElement.lang]"
        assert page.evaluate(kept) == ["light", "en"]


def test_accessibility(page: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page.check("#p-logprobs")
    message = ask(page, f"SAY:<think>so</think>{ANSWER}")
    assert not axe.run(page).response["violations"]
    message.locator(".tokens-switch").click()
    page.click("#theme")
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert not axe.run(page).response["violations"]
