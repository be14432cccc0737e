"""The dashboard over a real core with a fake executor."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.entrypoints.openai.live import Live
from tests.entrypoints.web.lab import page_of, screenshot
from tests.entrypoints.web.test_engine_state import fake_server
from tests.tiny_model import write_tiny_llama


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    model = write_tiny_llama(tmp_path_factory.mktemp("model"))
    with fake_server(model, "--fake-step-time", "0.04") as s:
        yield s


@pytest.fixture
def load(server: Live) -> Iterator[None]:
    """Five requests that begin alike, of which three run at once, for as long as the test."""
    loop = asyncio.new_event_loop()
    is_seen = asyncio.Event()

    async def run() -> None:
        bodies = [
            {"prompt": [*range(1, 60), i], "max_tokens": 400, "ignore_eos": True} for i in range(5)
        ]
        tasks = [asyncio.ensure_future(server.apost("/v1/completions", b)) for b in bodies]
        await is_seen.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    yield
    loop.call_soon_threadsafe(is_seen.set)
    thread.join(30)
    loop.close()


def number_of(page: Any, figure: int) -> float:
    return float(page.locator(".figure dd").nth(figure).inner_text().split()[0].replace(",", ""))


def test_a_load_is_seen(chromium: Any, server: Live, load: None) -> None:
    with page_of(chromium, f"{server.url}/dashboard", height=1000) as page:
        page.wait_for_selector("body[data-ready]")
        page.wait_for_selector("#requests .badge.running")
        page.wait_for_selector("#requests :text('for a place')")
        page.wait_for_timeout(1300)
        assert (number_of(page, 0), number_of(page, 1)) == (3, 2)
        assert number_of(page, 2) > 0
        assert number_of(page, 3) > 0
        assert int(page.locator("#count-shared").inner_text()) >= 3
        page.hover("#pool", position={"x": 40, "y": 8})
        page.wait_for_selector("#block dl")
        assert page.locator("#block h4").inner_text() == "Block 1"
        assert page.locator("#block dd").nth(1).inner_text() == "3"
        assert page.locator("#block .swatch").count() == 3
        page.hover("#steps", position={"x": 30, "y": 120})
        assert "Decode" in page.locator(".tooltip:visible").inner_text()
        page.mouse.move(2, 2)
        assert page.locator("#share-decode").inner_text().endswith(" %")
        for summary in page.locator("details.as-table > summary").all():
            summary.click()
        page.wait_for_selector("#steps-table tbody tr")
        assert "Shared" in page.locator("#pool-table").inner_text()
        for summary in page.locator("details.as-table > summary").all():
            summary.click()
        screenshot(page, "dashboard-en-light")
        page.click("#by-request")
        page.click("#theme")
        page.click("#theme")
        page.select_option("#language", "zh-CN")
        screenshot(page, "dashboard-zh-dark")
        page.set_viewport_size({"width": 360, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        screenshot(page, "dashboard-zh-dark-phone")


def test_by_keys_alone(chromium: Any, server: Live) -> None:
    warm = threading.Thread(target=lambda: server.complete(list(range(1, 60)), max_tokens=4))
    warm.start()
    warm.join(20)
    with page_of(chromium, f"{server.url}/dashboard") as page:
        page.wait_for_selector("body[data-ready]")
        page.focus("#pool")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#block p:text('null block')")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#block h4")
        assert "Free, still cached" in page.locator("#block").inner_text()
        page.keyboard.press("Escape")
        page.wait_for_selector("#block p")
        page.focus("#pause")
        page.keyboard.press("Enter")
        assert page.locator("#liveness").inner_text() == "Paused"
        assert page.locator("#pause").inner_text() == "Go on"


def test_accessibility(chromium: Any, server: Live) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for theme in ("light", "dark"):
        with page_of(chromium, f"{server.url}/dashboard", theme=theme) as page:
            page.wait_for_selector("body[data-ready]")
            page.click("#pause")
            assert not axe.run(page).response["violations"]


@pytest.mark.slow  # the page waits for three seconds before it tries again
def test_a_server_that_went_away_is_told(chromium: Any, server: Live) -> None:
    with page_of(chromium, f"{server.url}/dashboard", complaints=("ERR_FAILED",)) as page:
        page.wait_for_selector("body[data-ready]")
        page.route("**/v1/engine/state*", lambda route: route.abort())
        page.wait_for_selector(".notice")
        assert "cannot be reached" in page.locator(".notice").inner_text()
        page.unroute("**/v1/engine/state*")
        page.wait_for_selector(".notice", state="detached")
