"""A server in a thread, and pages that must not complain."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import Running, serving

ARTIFACTS = Path(__file__).parents[3] / "test-artifacts" / "web"
SECONDS = 8.0
"""How long anything may take to appear."""


@contextmanager
def in_thread(make: Callable[[], FakeEngine] = FakeEngine, **config: Any) -> Iterator[Running]:
    """A server around a fake engine, with an event loop of its own."""
    running: list[Running] = []
    is_up = threading.Event()

    async def main() -> None:
        async with serving(make(), drain_seconds=0.2, **config) as s:
            running.append(s)
            stopped = asyncio.ensure_future(asyncio.shield(s.task))
            is_up.set()
            await asyncio.wait({stopped})

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert is_up.wait(20)
    [s] = running
    loop = s.task.get_loop()
    try:
        yield s
    finally:
        loop.call_soon_threadsafe(s.stop.request)
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def page_of(
    browser: Any,
    url: str,
    *,
    language: str = "en-US",
    theme: str = "light",
    width: int = 1280,
    height: int = 860,
    complaints: tuple[str, ...] = (),
) -> Iterator[Any]:
    """A page in a browser that knows nothing yet. At the end it must have complained of nothing but
    what is named."""
    context = browser.new_context(
        locale=language,
        color_scheme=theme,
        viewport={"width": width, "height": height},
        reduced_motion="reduce",
        accept_downloads=True,
    )
    context.set_default_timeout(1000 * SECONDS)
    said: list[str] = []
    page = context.new_page()
    page.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    hosts: set[str] = set()
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    try:
        page.goto(url)
        yield page
        assert not [s for s in said if not any(c in s for c in complaints)]
        assert hosts == {url.split("/")[2]}, "something came from elsewhere"
    finally:
        context.close()


def screenshot(page: Any, name: str) -> None:
    """Keep a picture for people, as a test artefact."""
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"{name}.png", full_page="dashboard" in name)


def module(page: Any, name: str, body: str, argument: Any = None) -> Any:
    """Run JavaScript with a module of the pages as `m`; the value of `body` (an expression)."""
    code = f"""async (argument) => {{
        const script = document.querySelector('script[type=module]').src;
        const m = await import(new URL('./{name}.js', script));
        return {body};
    }}"""
    return page.evaluate(code, argument)
