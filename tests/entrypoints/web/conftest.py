"""Chromium, where there is one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser of playwright's. While it is there, no event loop can run in this thread."""
    api = pytest.importorskip("playwright.sync_api", reason="the test extra has playwright")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium here: install Debian's package 'chromium'")
    with api.sync_playwright() as playwright:
        # Chromium's own sandbox refuses root, as whom containers run.
        is_root = hasattr(os, "geteuid") and os.geteuid() == 0
        arguments = ["--disable-gpu", *(["--no-sandbox"] if is_root else [])]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()
