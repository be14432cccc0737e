"""What the OpenAPI document says of files and batches is what the server answers."""

from __future__ import annotations

from pathlib import Path

from tests.entrypoints.batches.batch_lab import create, say_lines, until
from tests.entrypoints.openai.harness import serving
from tests.entrypoints.openai.official_client import client_of
from tests.entrypoints.openai.test_openapi import check_reply, operation


async def test_answers_are_as_described(tmp_path: Path) -> None:
    async with serving(batch_dir=str(tmp_path)) as s, client_of(s) as client:
        done = await until(client, (await create(client, say_lines(2))).id, "completed")
        failed = await until(client, (await create(client, b"{\n")).id, "failed")
        for path in (
            *("/v1/files", "/v1/files?limit=1&order=asc", "/v1/files?limit=0", "/v1/files?after=x"),
            *(f"/v1/files/{done.output_file_id}", f"/v1/files/{done.output_file_id}/content"),
            *("/v1/files/x", "/v1/files/x/content", "/v1/batches/x"),
            *("/v1/batches", "/v1/batches?limit=1", "/v1/batches?limit=x", "/v1/batches?after=x"),
            *(f"/v1/batches/{done.id}", f"/v1/batches/{failed.id}"),
        ):
            check_reply("GET", path, await s.get(path))
        for file_id in (done.input_file_id, done.input_file_id):
            path = f"/v1/files/{file_id}"
            check_reply("DELETE", path, await s.request("DELETE", path, None, {}))
        for path, body in (
            ("/v1/batches", {"input_file_id": "x", "endpoint": "/v1/completions"}),
            (
                "/v1/batches",
                {
                    "input_file_id": failed.input_file_id,
                    "endpoint": "/v1/completions",
                    "completion_window": "1h",
                },
            ),
            (f"/v1/batches/{done.id}/cancel", {}),
            ("/v1/batches/x/cancel", {}),
            ("/v1/files", b""),
        ):
            check_reply("POST", path, await s.post(path, body))
    async with serving() as s:
        check_reply("GET", "/v1/batches", await s.get("/v1/batches"))


def test_the_form_is_described() -> None:
    content = operation("POST", "/v1/files")["requestBody"]["content"]
    assert list(content) == ["multipart/form-data"]
