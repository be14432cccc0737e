from __future__ import annotations

from typing import Any

import pytest

from octavo.entrypoints.openai.config import ServerConfig
from octavo.errors import ConfigError
from tests.entrypoints.openai.harness import Reply, Running, serving

PAGE = "https://example.org"


async def preflight(s: Running, origin: str, path: str = "/v1/chat/completions") -> Reply:
    headers = {
        "origin": origin,
        "access_control_request_method": "POST",
        "access_control_request_headers": "authorization,content-type",
    }
    return await s.request("OPTIONS", path, None, headers)


async def test_no_page_may_unless_told() -> None:
    async with serving(api_key=["k"]) as s:
        assert (await preflight(s, PAGE)).status == 401
        reply = await s.get("/v1/models", origin=PAGE, authorization="Bearer k")
        assert not any(name.startswith("access-control") for name in reply.headers)


async def test_pages_of_an_allowed_origin() -> None:
    async with serving(api_key=["k"], allowed_origins=[PAGE, "http://localhost:3000"]) as s:
        reply = await preflight(s, PAGE)
        assert reply.status == 200
        assert reply.headers["access-control-allow-origin"] == PAGE
        assert reply.headers["access-control-allow-headers"] == "authorization,content-type"
        assert "access-control-allow-credentials" not in reply.headers
        answer = await s.get("/v1/models", origin=PAGE, authorization="Bearer k")
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        refused = await s.get("/v1/models", origin=PAGE)  # a page may read why
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, PAGE)
        for other in ("https://example.org.evil", "http://example.org", "null", ""):
            assert (await preflight(s, other)).status in (400, 401)
            reply = await s.get("/health", origin=other)
            assert "access-control-allow-origin" not in reply.headers
        await preflight(s, PAGE, "/nope")


async def test_all_pages_and_some_methods() -> None:
    async with serving(
        allowed_origins=["*"], allowed_methods=["GET"], allowed_headers=["content-type"]
    ) as s:
        assert (await preflight(s, PAGE)).status == 400
        reply = await s.get("/health", origin=PAGE)
        assert reply.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_foreign_page_cannot_send_what_needs_no_preflight(site: str) -> None:
    """Another port of this machine is the same site, and another origin."""
    async with serving(allowed_origins=["http://localhost:3000"]) as s:
        reply = await s.completion("SAY:a")
        assert reply.status == 200
        body = {"model": "fake", "prompt": "SAY:a"}
        for origin, status in ((PAGE, 403), ("null", 403), ("http://localhost:3000", 200)):
            headers = {"sec_fetch_site": site, "origin": origin}
            reply = await s.post("/v1/completions", body, **headers)
            assert reply.status == status
            assert status == 200 or reply.error["code"] == "foreign_page"
            assert (await s.get("/v1/models", **headers)).status == 200
        assert (await s.post("/v1/completions", body, sec_fetch_site=site)).status == 403
        for own in ("same-origin", "none"):
            reply = await s.post("/v1/completions", body, sec_fetch_site=own, origin=s.url)
            assert reply.status == 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allowed_origins": ['["*"]']}, "repeat the flag"),
        ({"allowed_origins": ["example.org"]}, "must be \\* or an origin"),
        ({"allowed_origins": [PAGE + "/"]}, "without a path"),
        ({"allowed_origins": [PAGE + ",http://b"]}, "repeat the flag"),
        ({"allowed_origins": [""]}, "empty"),
        ({"allowed_methods": ["GET"]}, "need allowed_origins"),
        ({"allow_credentials": True}, "need allowed_origins"),
        ({"allowed_origins": ["*"], "allow_credentials": True}, "name the origins"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerConfig(**options)


@pytest.mark.parametrize("origin", ["*", "http://localhost:3000", "http://[::1]:80", "app://x"])
async def test_origins(origin: str) -> None:
    async with serving(allowed_origins=[origin]) as s:
        reply = await s.get("/v1/models", origin=origin)
    assert reply.headers["access-control-allow-origin"] == origin
