"""The server fetches nothing and opens nothing at a client's wish: media and file URLs are refused
by name, paths cannot leave their folders (CVE-2026-24779, CVE-2026-116176, path traversal)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.entrypoints.openai.harness import serving

KINDS = {
    "image_url": lambda url: {"type": "image_url", "image_url": {"url": url}},
    "input_image": lambda url: {"type": "input_image", "image_url": url},
    "video_url": lambda url: {"type": "video_url", "video_url": {"url": url}},
    "audio_url": lambda url: {"type": "audio_url", "audio_url": {"url": url}},
    "input_audio": lambda url: {"type": "input_audio", "input_audio": {"data": url}},
    "file": lambda url: {"type": "file", "file": {"file_data": url}},
}


@asynccontextmanager
async def trap() -> AsyncIterator[tuple[str, list[str]]]:
    """An address that notes whoever comes."""
    visitors: list[str] = []

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visitors.append("somebody")
        writer.close()

    server = await asyncio.start_server(visit, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", visitors


@pytest.mark.parametrize("kind", KINDS)
async def test_media_are_refused_by_name(kind: str) -> None:
    async with trap() as (address, visitors), serving() as s:
        for url in (
            *(f"http://{address}/x.png", f"https://{address}/x", f"//{address}/x"),
            *("file:///etc/passwd", "/etc/passwd", "data:image/png;base64,AAAA"),
            *("http://169.254.169.254/latest/meta-data/", f"ftp://{address}/x"),
        ):
            reply = await s.chat([KINDS[kind](url)])
            assert reply.status == 400
            assert repr(kind) in reply.error["message"]
            assert "not supported" in reply.error["message"]
            assert reply.error["param"] == "messages"
        assert not visitors


async def test_urls_are_text_wherever_else_they_stand() -> None:
    async with trap() as (address, visitors), serving() as s:
        url = f"http://{address}/x"
        schema = {"$ref": url, "type": "object"}
        for fields in (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
            {"structured_outputs": {"json": {"$schema": url, "$id": url, "type": "object"}}},
            {"structured_outputs": {"grammar": f"%import {url}\nstart: WORD"}},
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]},
            {"metadata": {"url": url}, "user": url},
            {"chat_template": f"{{% include '{url}' %}}"},
            {"mm_processor_kwargs": {"url": url}},
        ):
            await s.chat("SAY:x", **fields)
        await s.get("/v1/models", x_request_id=url, referer=url, host=address)
        assert not visitors


@pytest.mark.parametrize("name", ["chat_template", "documents", "media_io_kwargs", "mm_payload"])
async def test_fields_that_bring_code_or_files_are_refused(name: str) -> None:
    async with serving() as s:
        reply = await s.chat("SAY:x", **{name: {"x": "/etc/passwd"}})
        assert reply.status == 400
        assert reply.error["param"] == name


@pytest.mark.parametrize(
    "path",
    [
        *("../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd"),
        *("....//....//etc/passwd", "..\\..\\etc\\passwd", "/etc/passwd", "%00/etc/passwd"),
        *("file:///etc/passwd", "~/.ssh/id_rsa", "proc/self/environ", "..;/etc/passwd"),
    ],
)
async def test_paths_stay_where_they_are(path: str, tmp_path: Path) -> None:
    """Under every prefix that routes have, with stored files."""
    async with serving(batch_dir=str(tmp_path)) as s:
        for prefix in ("", "v1/", "v1/models/", "docs/", "static/", "v1/files/", "v1/batches/"):
            for method in ("GET", "DELETE"):
                reply = await s.request(method, f"/{prefix}{path}", None, {})
                assert reply.status in (400, 404, 405), (prefix, reply.status)
                assert b"root:" not in reply.body


async def test_models_and_templates_are_not_the_requests_to_choose() -> None:
    async with serving() as s:
        for name in ("/etc/passwd", "../model", "https://example.org/x.gguf", "pypi:x==1/y"):
            body: dict[str, Any] = {"model": name, "prompt": "x"}
            reply = await s.post("/v1/completions", body)
            assert (reply.status, reply.error["code"]) == (404, "model_not_found")
