from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from octavo.entrypoints.web.assets import FOLDER, PAGES, load_assets
from tests.entrypoints.openai.harness import serving

ASSETS = load_assets()
SOURCES = {p.name: p.read_text(encoding="utf-8") for p in FOLDER.rglob("*.*") if p.is_file()}


def names_of(page: str) -> list[str]:
    return re.findall(r'(?:src|href)="(static/[^"]+)"', ASSETS[page].body.decode())


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_loads_is_there(page: str) -> None:
    names = names_of(page)
    assert len(names) > 4
    assert all(f"/{name}" in ASSETS for name in names)
    imports = re.findall(r'from "(\.[^"]+)"', "\n".join(SOURCES.values()))
    assert {Path(name).name for name in imports} <= set(SOURCES)


def test_no_file_is_loaded_by_nobody() -> None:
    everything = "\n".join(SOURCES.values())
    assert not [n for n in SOURCES if n not in PAGES.values() and f"/{n}" not in everything]


def test_sources_keep_to_the_policy() -> None:
    """No inline script or style, nothing from elsewhere, no HTML made of text."""
    for name, text in SOURCES.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert not re.search(r"new Function|srcdoc|javascript:", text), name
        hosts = set(re.findall(r"https?://([\w.-]+)", text)) - {"www.w3.org"}
        assert not hosts, (name, hosts)
        if name.endswith(".html"):
            assert not re.search(r"<style|\sstyle=|\son\w+=", text)
            assert re.findall(r"<script[^>]*>([^<]*)</script>", text) == ["", ""]
        assert text.count("\n") <= 600, name


async def test_pages_answer_without_a_key_and_nothing_else_does() -> None:
    async with serving(api_key=["k"]) as s:
        for path in ("/", "/dashboard", f"/{names_of('/')[0]}"):
            reply = await s.get(path)
            assert reply.status == 200
            policy = reply.headers["content-security-policy"]
            assert policy.startswith("default-src 'self'; ")
            assert "unsafe" not in policy
            assert reply.headers["x-content-type-options"] == "nosniff"
        for path in ("/v1/engine/state", "/v1/models", "/dashboard/", "/stat", "/static"):
            assert (await s.get(path)).status == 401
        key = {"authorization": "Bearer k"}
        assert (await s.get("/v1/engine/state", **key)).status == 200


async def test_paths_cannot_leave_the_folder() -> None:
    async with serving() as s:
        for path in (
            "/static/",
            "/static/../state.py",
            "/static/%2e%2e/%2e%2e/assets.py",
            "/static//etc/passwd",
            "/static/x/js/dom.js",
            "/static/" + "a/" * 500,
            "/static/\\..\\assets.py",
        ):
            reply = await s.get(path)
            assert reply.status == 404, path
            assert reply.error["message"].startswith("there is no")


async def test_caching() -> None:
    async with serving() as s:
        page = await s.get("/")
        assert page.headers["cache-control"] == "no-cache"
        again = await s.get("/", if_none_match=page.headers["etag"], connection="close")
        assert (again.status, again.body) == (304, b"")
        changed = await s.get("/", if_none_match='"other"')
        assert changed.status == 200
        script = await s.get(f"/{names_of('/')[-1]}", accept_encoding="br, gzip")
        assert "immutable" in script.headers["cache-control"]
        assert script.headers["content-type"].startswith("text/javascript")
        assert gzip.decompress(script.body) == ASSETS[f"/{names_of('/')[-1]}"].body
        head = await s.request("HEAD", "/dashboard", None, {})
        assert (head.status, head.body) == (200, b"")


def test_all_together_are_small() -> None:
    assert sum(len(asset.gzipped) for asset in ASSETS.values()) < 60_000
