"""No route answers without a key, but those that are meant to (CVE-2026-48746: only some prefixes
were protected)."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest

from octavo.entrypoints.openai import admin
from octavo.entrypoints.openai.app import ROUTES
from octavo.entrypoints.openai.openapi import documentation_routes
from tests.entrypoints.openai.harness import Running, serving

OPEN = {"/health", "/", "/dashboard"}
"""`/health`, and the shells of the web pages, which ask for a key."""
STATIC = "/static/"
"""What these shells consist of."""
PATHS = {r.path for r in (*ROUTES, *admin.ROUTES, *documentation_routes(ROUTES))}
CONCRETE = sorted(p.replace("{name:path}", "x/y").replace("{", "").replace("}", "") for p in PATHS)
KEY = "k3y-of-the-server"


def variants(path: str) -> set[str]:
    """Other spellings of a path, of which a careless check lets some through."""
    first = path[1:2]
    return {
        path,
        path.upper(),
        path.title(),
        path + "/",
        "/" + path,
        "//" + path,
        "/." + path,
        "/x/.." + path,
        "/health/.." + path,
        "/health" + path,
        "/health;" + path,
        "/health?" + path,
        "/health/..%2f" + path[1:],
        "/%68ealth/.." + path,
        f"/%{ord(first):02x}{path[2:]}" if first else "/%2f",
        path.replace("/", "%2f"),
        path.replace("/", "\\"),
        path + "?key=" + KEY,
        path + "?api_key=" + KEY,
        path + "%00",
        path + "%00/health",
        path + ";/health",
        path + "#/health",
        path + "/../health",
        "http://127.0.0.1" + path,
        "http://x/health/.." + path,
    }


def is_open(spelling: str) -> bool:
    """Is that a route for everybody? Host, query and fragment do not change which route it is."""
    path = unquote(re.sub(r"^http://[^/]*|[?#].*$", "", spelling))
    return path in OPEN or path.startswith(STATIC)


async def status(s: Running, method: str, path: str, *headers: str) -> int:
    head = "".join(f"{h}\r\n" for h in ("host: x", "connection: close", *headers))
    return (await s.raw(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode())).status


async def test_every_route_in_every_spelling() -> None:
    assert len(CONCRETE) >= 9
    async with serving(api_key=[KEY], server_dev_mode=True) as s:
        for path in (*CONCRETE, "/", "/nope", "/v1", "/v1/nope", "/.env", "/admin"):
            for spelling in variants(path):
                if is_open(spelling):
                    continue
                got = await status(s, "GET", spelling)
                assert got in (400, 401), (spelling, got)  # 400: that is no HTTP
                assert got == 401 or spelling[0] != "/", spelling


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND"]
)
async def test_every_method(method: str) -> None:
    async with serving(api_key=[KEY], server_dev_mode=True) as s:
        for path in CONCRETE:
            if not is_open(path):
                reader, writer = await s.connect()
                writer.write(f"{method} {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
                assert (await reader.readline()).split()[1] == b"401", path
                writer.close()


async def test_every_wrong_way_to_give_a_key() -> None:
    async with serving(api_key=[KEY]) as s:
        for header in (
            f"authorization: {KEY}",
            f"authorization: Basic {KEY}",
            f"authorization: Bearer {KEY[:-1]}",
            f"authorization: Bearer {KEY}x",
            f"authorization: Bearer {KEY.upper()}",
            f"authorization: Bearer {KEY}, Bearer {KEY}",
            "authorization: Bearer",
            "authorization: Bearer null",
            "authorization: Bearer undefined",
            f"authorization: Bearer {KEY}\r\nauthorization: Bearer {KEY}",
            f"x-forwarded-authorization: Bearer {KEY}",
            f"api-key: {KEY}",
            f"cookie: authorization=Bearer {KEY}",
            "x-forwarded-for: 127.0.0.1",
            "x-original-url: /health",
            "x-rewrite-url: /health",
            "x-http-method-override: HEAD",
        ):
            assert await status(s, "GET", "/v1/models", header) == 401, header
        assert await status(s, "GET", "/v1/models", f"authorization: Bearer {KEY}") == 200


async def test_the_open_route_tells_nothing() -> None:
    async with serving(api_key=[KEY]) as s:
        assert len((await s.get("/health")).body) < 100
