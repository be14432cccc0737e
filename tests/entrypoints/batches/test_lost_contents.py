"""What becomes of batches whose files something else has removed, or made unreadable."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.entrypoints.batches.batch_lab import (
    content_of,
    create,
    jsonl,
    say_lines,
    until,
)
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import eventually, serving
from tests.entrypoints.openai.official_client import client_of


async def test_an_input_that_vanished(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(engine, batch_dir=str(tmp_path)) as s, client_of(s) as client:
        file = await client.files.create(file=("a", b"{}\n"), purpose="batch")
        (tmp_path / "contents" / file.id).unlink()
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        failed = await until(client, batch.id, "failed")
        assert failed.errors is not None
        [error] = failed.errors.data or ()
        assert (error.code, error.param) == ("file_not_found", "input_file_id")
        assert error.message is not None
        assert f"input file {file.id} is lost; upload it again" in error.message


@pytest.mark.parametrize("lost", ["an input", "the end of an input", "results"])
async def test_a_content_that_is_lost_in_mid_batch(lost: str, tmp_path: Path) -> None:
    """The next server finds only a part of what the first one had; it says so, and what it has is
    to be had."""
    engine = FakeEngine(step_seconds=0.002)
    options = {"batch_dir": str(tmp_path), "max_batch_lines_in_flight": 2}
    async with serving(engine, **options) as s, client_of(s) as client:
        batch = await create(client, say_lines(400))
        batches = s.server.batches
        assert batches is not None
        await eventually(lambda: batches.num_finished["completed"] > 3)
    contents = tmp_path / "contents"
    (results,) = (f for f in contents.iterdir() if f.name != batch.input_file_id)
    path = results if lost == "results" else contents / batch.input_file_id
    if lost == "an input":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100])
    async with serving(**options) as s, client_of(s) as client:
        failed = await until(client, batch.id, "failed")
        assert failed.errors is not None
        [error] = failed.errors.data or ()
        assert error.code == "file_not_found"
        assert error.message is not None
        assert path.name in error.message
        if lost != "results":
            assert failed.request_counts is not None
            results_left = await content_of(client, failed.output_file_id)
            assert len(results_left) == failed.request_counts.completed > 3


async def test_an_input_that_cannot_be_read_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.entrypoints.batches.service.RETRY_SECONDS", 0.1)
    async with serving(batch_dir=str(tmp_path)) as s, client_of(s) as client:
        file = await client.files.create(file=("a", jsonl(say_lines(2))), purpose="batch")
        path = tmp_path / "contents" / file.id
        whole = path.rename(tmp_path / "whole")
        path.symlink_to(tmp_path)
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        await asyncio.sleep(0.3)
        assert (await client.batches.retrieve(batch.id)).status == "validating"
        reply = await s.get(f"/v1/files/{file.id}/content")
        assert (reply.status, reply.error["code"]) == (503, "storage_unavailable")
        whole.replace(path)  # in one, as the server looks for it meanwhile
        await until(client, batch.id, "completed")


@pytest.mark.parametrize("left", [None, b"{"])
async def test_a_lost_content_is_asked_for(left: bytes | None, tmp_path: Path) -> None:
    async with serving(batch_dir=str(tmp_path)) as s, client_of(s) as client:
        file = await client.files.create(file=("a", b"{}\n"), purpose="batch")
        path = tmp_path / "contents" / file.id
        path.unlink()
        if left is not None:
            path.write_bytes(left)
        reply = await s.get(f"/v1/files/{file.id}/content")
        assert (reply.status, reply.error["param"]) == (404, "id")
        assert f"the content of {file.id} is not there" in reply.error["message"]
        assert (await s.request("DELETE", f"/v1/files/{file.id}", None, {})).status == 200
