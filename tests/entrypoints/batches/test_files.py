"""Uploads and downloads as a stranger would send them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.entrypoints.batches import files
from tests.entrypoints.openai.harness import (
    Reply,
    Running,
    close,
    eventually,
    read_reply,
    request_bytes,
    serving,
)

BOUNDARY = "xXx"


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    disposition = f'form-data; name="{name}"'
    if filename is not None:
        disposition += f'; filename="{filename}"'
    head = f"--{BOUNDARY}\r\nContent-Disposition: {disposition}\r\n\r\n"
    return head.encode() + value + b"\r\n"


PURPOSE = part("purpose", b"batch")
FILE = part("file", b"{}\n", "a")
END = f"--{BOUNDARY}--\r\n".encode()


async def upload(s: Running, body: bytes, **headers: str) -> Reply:
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    return await s.post("/v1/files", body, **{"content_type": kind, **headers})


def stored(folder: Path) -> list[bytes]:
    contents = folder / "contents"
    return sorted(p.read_bytes() for p in contents.iterdir()) if contents.exists() else []


async def test_fields_in_any_order(tmp_path: Path) -> None:
    async with serving(batch_dir=str(tmp_path)) as s:
        for body in (PURPOSE + FILE, FILE + PURPOSE):
            reply = await upload(s, b"\r\n" + body + END + b"epilogue")
            assert reply.status == 200
            assert reply.json["bytes"] == 3
        reply = await upload(s, b"\r\n" * 40_000 + PURPOSE + FILE + END)
        assert (reply.status, "beside its file" in reply.error["message"]) == (400, True)
        content = f"\r\n--{BOUNDARY}".encode()[:-1] * 500 + b"\r\n\0"
        reply = await upload(s, PURPOSE + part("file", content, "b") + END)
        got = await s.get(f"/v1/files/{reply.json['id']}/content")
        assert got.body == content
        assert got.headers["content-type"] == "application/octet-stream"
        assert stored(tmp_path) == sorted([b"{}\n", b"{}\n", content])
        assert oct(tmp_path.stat().st_mode & 0o777) in ("0o700", "0o755")  # ours was there before
        assert oct((tmp_path / "contents").stat().st_mode & 0o777) == "0o700"
        for path in (tmp_path / "batches.db", *(tmp_path / "contents").iterdir()):
            assert oct(path.stat().st_mode & 0o777) == "0o600"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"", 400, None),
        (b"nothing of the kind", 400, None),
        (PURPOSE + FILE, 400, None),  # no end
        (END, 400, "file"),
        (PURPOSE + END, 400, "file"),
        (FILE + END, 400, "purpose"),
        (part("purpose", b"assistants") + FILE + END, 400, "purpose"),
        (PURPOSE + PURPOSE + FILE + END, 400, "purpose"),
        (PURPOSE + FILE + FILE + END, 400, "file"),
        (PURPOSE + part("file", b"", "a") + END, 400, "file"),
        (PURPOSE + part("file", b"x") + END, 400, "file"),  # a field, not a file
        (PURPOSE + part("file", b"x", "y" * 256) + END, 400, "file"),
        (PURPOSE + FILE + part("more", b"1") + END, 400, "more"),
        (part("purpose", b"b" * 300) + FILE + END, 400, "purpose"),
        (PURPOSE + FILE + part("expires_after[seconds]", b"3600") + END, 400, "expires_after"),
        (
            PURPOSE + FILE + part("expires_after[anchor]", b"created_at")
            + part("expires_after[seconds]", b"1") + END,
            400,
            "expires_after",
        ),
        (f"--{BOUNDARY}\r\nX: y\r\n\r\n\r\n".encode() + END, 400, None),
        (f"--{BOUNDARY}\r\n{'X: y' * 9000}\r\n\r\n\r\n".encode() + END, 400, None),
        (PURPOSE + part("file", b"x" * 2000, "a") + END, 413, "file"),
    ],
)  # fmt: skip
async def test_bad_forms(tmp_path: Path, body: bytes, status: int, param: str | None) -> None:
    async with serving(batch_dir=str(tmp_path), max_batch_file_bytes=1000) as s:
        reply = await upload(s, body)
        assert (reply.status, reply.error["param"]) == (status, param), reply.body
        assert s.server.batches is not None
        await s.server.batches.call(lambda store: None)
        assert stored(tmp_path) == []
        assert (await s.get("/v1/files")).json["data"] == []


async def test_limits(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"max_batch_file_bytes": 5000, "max_batch_storage_bytes": 8000}
    async with serving(batch_dir=str(tmp_path), **limits) as s:
        big = PURPOSE + part("file", b"x" * 4900, "a") + END
        first = await upload(s, big)
        assert first.status == 200
        refused = await upload(s, big)
        assert (refused.status, refused.error["code"]) == (400, "storage_full")
        assert "4900 bytes are stored" in refused.error["message"]
        assert (await s.request("DELETE", f"/v1/files/{first.json['id']}", None, {})).status == 200
        assert stored(tmp_path) == []
        assert (await upload(s, big)).status == 200
        declared = await upload(s, b"", content_length="99999999")
        assert declared.status == 413
        for kind in ("application/json", "multipart/form-data", "text/plain; boundary=x"):
            assert (await upload(s, big, content_type=kind)).status == 415


async def test_uploads_of_a_key_leave_room_for_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_UPLOADS", 2)
    keys = [{"authorization": f"Bearer {key}"} for key in ("one", "two", "three")]
    head = {"content-type": f"multipart/form-data; boundary={BOUNDARY}", "content-length": "900"}
    async with serving(batch_dir=str(tmp_path), api_key=["one", "two", "three"]) as s:
        writers = []
        for number, key in enumerate(keys[:2], start=1):
            _, writer = await asyncio.open_connection("127.0.0.1", s.port)
            writers.append(writer)
            writer.write(request_bytes("POST", "/v1/files", None, {**head, **key}))
            await eventually(lambda n=number: s.server.batches.uploads.total() == n)
            reply = await upload(s, PURPOSE + FILE + END, **key)
            assert (reply.status, reply.error["code"]) == (503, "queue_full")
            assert ("this key" in reply.error["message"]) is (number == 1)
        assert (await upload(s, PURPOSE + FILE + END, **keys[2])).status == 503
        await close(writers[0])
        await eventually(lambda: s.server.batches.uploads.total() == 1)
        assert (await upload(s, PURPOSE + FILE + END, **keys[0])).status == 200
        await close(writers[1])


async def test_an_upload_that_is_broken_off_leaves_nothing(tmp_path: Path) -> None:
    async with serving(batch_dir=str(tmp_path), body_timeout=0.2) as s:
        batches = s.server.batches
        assert batches is not None
        for leaves in (True, False):
            headers = {
                "content_type": f"multipart/form-data; boundary={BOUNDARY}",
                "content_length": "1000",
            }
            reader, writer = await s.connect()
            writer.write(request_bytes("POST", "/v1/files", PURPOSE + FILE[:-2], headers))
            await writer.drain()
            if not leaves:
                assert (await read_reply(reader)).status == 408
            else:
                await eventually(lambda: batches.uploads.total() == 1)
            await close(writer)
            await eventually(lambda: s.server.in_flight == 0)
        await batches.call(lambda store: None)  # behind all that it was asked
        assert stored(tmp_path) == []


async def test_paths_cannot_leave_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    (tmp_path / "secret").write_text("secret")
    async with serving(batch_dir=str(folder)) as s:
        made = (await upload(s, PURPOSE + part("file", b"{}\n", "../../secret") + END)).json
        assert made["filename"] == "../../secret"
        for name in ("../secret", "..%2fsecret", "%2e%2e/secret", "..", ".", "%00", "a" * 5000):
            for path in (f"/v1/files/{name}", f"/v1/files/{name}/content"):
                assert (await s.get(path)).status == 404
            assert (await s.request("DELETE", f"/v1/files/{name}", None, {})).status == 404
        for path in ("../secret", "nope", "file-1"):
            body = {"input_file_id": path, "endpoint": "/v1/completions"}
            reply = await s.post("/v1/batches", {**body, "completion_window": "24h"})
            assert (reply.status, reply.error["param"]) == (404, "input_file_id")
        assert [p.name for p in (folder / "contents").iterdir()] == [made["id"]]
        assert oct(folder.stat().st_mode & 0o777) == "0o700"


async def test_without_a_folder() -> None:
    async with serving() as s:
        for path in ("/v1/files", "/v1/files/x", "/v1/files/x/content", "/v1/batches"):
            reply = await s.get(path)
            assert (reply.status, "--batch-dir" in reply.error["message"]) == (501, True)
        assert (await upload(s, PURPOSE + FILE + END)).status == 501


async def test_pages(tmp_path: Path) -> None:
    async with serving(batch_dir=str(tmp_path)) as s:
        ids = [(await upload(s, PURPOSE + FILE + END)).json["id"] for _ in range(5)]
        page = (await s.get("/v1/files?limit=2&order=asc")).json
        assert ([f["id"] for f in page["data"]], page["has_more"]) == (ids[:2], True)
        assert (page["first_id"], page["last_id"]) == (ids[0], ids[1])
        page = (await s.get(f"/v1/files?limit=9&order=asc&after={ids[3]}")).json
        assert ([f["id"] for f in page["data"]], page["has_more"]) == (ids[4:], False)
        assert (await s.get("/v1/files?after=nope")).status == 404
        for query in (
            "limit=0",
            "limit=10001",
            "order=up",
            "purpose=x",
            "what=1",
            "limit=1&limit=2",
        ):
            assert (await s.get(f"/v1/files?{query}")).status == 400
        await asyncio.gather(
            *(s.request("DELETE", f"/v1/files/{i}", None, {}) for i in ids for _ in range(2))
        )
        assert stored(tmp_path) == []
