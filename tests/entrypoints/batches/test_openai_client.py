"""Files and batches by the official client, unmodified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.entrypoints.batches.batch_lab import (
    CHAT,
    chat_line,
    content_of,
    create,
    jsonl,
    said,
    say_lines,
    until,
)
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import MODEL, serving
from tests.entrypoints.openai.official_client import client_of


async def test_files(tmp_path: Path) -> None:
    async with serving(batch_dir=str(tmp_path)) as s, client_of(s) as client:
        path = tmp_path / "some input.jsonl"
        path.write_bytes(jsonl(say_lines(3)))
        made = await client.files.create(file=path, purpose="batch")
        assert (made.filename, made.purpose, made.object) == (path.name, "batch", "file")
        assert made.bytes == path.stat().st_size
        assert made.expires_at is None
        other = await client.files.create(
            file=("../../é.jsonl", b"{}\n"),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert other.filename == "../../é.jsonl"
        assert other.expires_at == other.created_at + 3600
        assert await client.files.retrieve(made.id) == made
        assert [f.id async for f in client.files.list()] == [other.id, made.id]
        assert [f.id async for f in client.files.list(order="asc")] == [made.id, other.id]
        assert [f.id async for f in client.files.list(limit=1)] == [other.id, made.id]  # two pages
        assert [f.id async for f in client.files.list(purpose="batch_output")] == []
        assert (await client.files.content(made.id)).content == path.read_bytes()
        gone = await client.files.delete(made.id)
        assert (gone.id, gone.deleted) == (made.id, True)
        with pytest.raises(openai.NotFoundError):
            await client.files.content(made.id)
        assert [p.name for p in (tmp_path / "contents").iterdir()] == [other.id]


async def test_a_batch_from_end_to_end(tmp_path: Path) -> None:
    async with serving(batch_dir=str(tmp_path)) as s, client_of(s) as client:
        lines = [
            *say_lines(20),
            chat_line("bad", "SAY:x", temperature=9),
            chat_line("unknown model", "SAY:x", model="nope"),
            chat_line("stream", "SAY:x", stream=True),
        ]
        batch = await create(client, lines, metadata={"for": "a test"})
        assert (batch.object, batch.endpoint, batch.completion_window) == ("batch", CHAT, "24h")
        assert batch.metadata == {"for": "a test"}
        assert batch.expires_at == batch.created_at + 86400
        done = await until(client, batch.id, "completed")
        assert done.request_counts is not None
        counts = done.request_counts
        assert (counts.total, counts.completed, counts.failed) == (23, 20, 3)
        assert done.in_progress_at
        assert done.finalizing_at
        assert done.completed_at
        results = await content_of(client, done.output_file_id)
        assert {r["custom_id"]: said(r) for r in results} == {
            f"r{i}": f"answer {i}" for i in range(20)
        }
        assert len(results) == 20
        for result in results:
            assert set(result) == {"id", "custom_id", "response", "error"}
            assert result["id"].startswith("batch_req_")
            assert result["error"] is None
            assert set(result["response"]) == {"status_code", "request_id", "body"}
            assert result["response"]["status_code"] == 200
            assert result["response"]["body"]["object"] == "chat.completion"
        failures = await content_of(client, done.error_file_id)
        errors = {r["custom_id"]: r["response"] for r in failures}
        assert {i: r["status_code"] for i, r in errors.items()} == {
            "bad": 400,
            "unknown model": 404,
            "stream": 400,
        }
        assert errors["bad"]["body"]["error"]["param"] == "temperature"
        assert errors["stream"]["body"]["error"]["param"] == "stream"
        assert [b.id async for b in client.batches.list()] == [batch.id]
        files = {f.id: f async for f in client.files.list()}
        assert set(files) == {batch.input_file_id, done.output_file_id, done.error_file_id}
        assert done.output_file_id is not None
        assert files[done.output_file_id].purpose == "batch_output"
        metrics = await s.metrics()
        assert metrics['batch_lines_total{outcome="completed"}'] == 20
        assert metrics['batch_lines_total{outcome="failed"}'] == 3
        assert metrics["batch_lines_running"] == metrics["batch_lines_waiting"] == 0
        assert metrics["batches_running"] == 0


async def test_embeddings(tmp_path: Path) -> None:
    async with serving(batch_dir=str(tmp_path)) as s, client_of(s) as client:
        lines = [
            {
                "custom_id": str(i),
                "method": "POST",
                "url": "/v1/embeddings",
                "body": {"model": MODEL, "input": text},
            }
            for i, text in enumerate(("one", "three"))
        ]
        batch = await create(client, lines, endpoint="/v1/embeddings")
        done = await until(client, batch.id, "completed")
        results = await content_of(client, done.output_file_id)
        alone = await client.embeddings.create(model=MODEL, input="three", encoding_format="float")
    found = {r["custom_id"]: r["response"]["body"]["data"][0]["embedding"] for r in results}
    assert set(found) == {"0", "1"}
    assert found["1"] == alone.data[0].embedding


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/score", {"text_1": "one", "text_2": ["one", "three"]}),
        ("/v1/rerank", {"query": "one", "documents": ["three", "one"]}),
    ],
)
async def test_scores(tmp_path: Path, url: str, body: dict[str, Any]) -> None:
    async with serving(batch_dir=str(tmp_path)) as s, client_of(s) as client:
        line = {"custom_id": "a", "method": "POST", "url": url, "body": body}
        batch = await create(client, [line], endpoint=url)
        done = await until(client, batch.id, "completed")
        [result] = await content_of(client, done.output_file_id)
        alone = (await s.post(url, body)).json
    name = "data" if url == "/v1/score" else "results"
    assert result["response"]["body"][name] == alone[name]


async def test_responses(tmp_path: Path) -> None:
    async with serving(batch_dir=str(tmp_path)) as s, client_of(s) as client:
        lines = [
            {
                "custom_id": name,
                "method": "POST",
                "url": "/v1/responses",
                "body": {"model": MODEL, "input": "SAY:abc", **fields},
            }
            for name, fields in (("a", {}), ("b", {"background": True}), ("c", {"stream": True}))
        ]
        batch = await create(client, lines, endpoint="/v1/responses")
        done = await until(client, batch.id, "completed")
        (good,) = await content_of(client, done.output_file_id)
        wrong = await content_of(client, done.error_file_id)
        assert len(s.server.responses) == 0
    answer = good["response"]["body"]
    assert (answer["status"], answer["store"]) == ("completed", False)
    assert answer["output"][0]["content"][0]["text"] == "abc"
    params = {r["custom_id"]: r["response"]["body"]["error"]["param"] for r in wrong}
    assert params == {"b": "background", "c": "stream"}


async def test_completions(tmp_path: Path) -> None:
    async with serving(batch_dir=str(tmp_path)) as s, client_of(s) as client:
        body = {"model": MODEL, "prompt": ["SAY:a", "SAY:b"]}
        line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}
        batch = await create(client, [line], endpoint="/v1/completions")
        done = await until(client, batch.id, "completed")
        (result,) = await content_of(client, done.output_file_id)
        assert [c["text"] for c in result["response"]["body"]["choices"]] == ["a", "b"]
        assert done.error_file_id is None


async def test_cancelling(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with (
        serving(engine, batch_dir=str(tmp_path), max_batch_lines_in_flight=4) as s,
        client_of(s) as client,
    ):
        lines = [chat_line(f"r{i}", "count", max_tokens=1 if i < 5 else 4000) for i in range(30)]
        engine.gate.clear()
        batch = await create(client, lines)
        await until(client, batch.id, "in_progress")
        engine.gate.set()
        while (b := await client.batches.retrieve(batch.id)).request_counts.completed < 5:  # type: ignore[union-attr]
            assert b.output_file_id is None  # not before its end
        asked = await client.batches.cancel(batch.id)
        assert asked.status in ("cancelling", "cancelled")
        over = await until(client, batch.id, "cancelled")
        assert over.cancelled_at
        assert over.request_counts is not None
        results = await content_of(client, over.output_file_id)
        errors = await content_of(client, over.error_file_id)
        assert over.request_counts.completed == len(results)
        assert over.request_counts.failed == len(errors)
        assert sorted(r["custom_id"] for r in results + errors) == sorted(
            f"r{i}" for i in range(30)
        )
        assert {e["error"]["code"] for e in errors} == {"batch_cancelled"}
        assert all(e["response"] is None for e in errors)
        with pytest.raises(openai.ConflictError, match="is cancelled"):
            await client.batches.cancel(batch.id)


async def test_an_input_that_is_wrong_fails_before_anything_runs(tmp_path: Path) -> None:
    async with serving(batch_dir=str(tmp_path)) as s, client_of(s) as client:
        content = (
            b"\xef\xbb\xbf" + jsonl(say_lines(1)) + b"{bad\n\n" + jsonl(say_lines(1))
            + jsonl([{**chat_line("u", "x"), "url": "/v1/nope"}])
        )  # fmt: skip
        failed = await until(client, (await create(client, content)).id, "failed")
        assert failed.failed_at
        assert failed.errors is not None
        assert [(e.line, e.code) for e in failed.errors.data or ()] == [
            (2, "invalid_json_line"),
            (4, "duplicate_custom_id"),
            (5, "mismatched_url"),
        ]
        assert failed.output_file_id is failed.error_file_id is None
        assert (await s.metrics())['request_success_total{finished_reason="stop"}'] == 0


async def test_a_key_sees_only_its_own(tmp_path: Path) -> None:
    async with serving(batch_dir=str(tmp_path), api_key=["k1", "k2"]) as s:  # noqa: SIM117
        async with client_of(s, "k1") as one, client_of(s, "k2") as two:
            batch = await create(one, say_lines(1))
            done = await until(one, batch.id, "completed")
            assert done.output_file_id is not None
            assert [f.id async for f in two.files.list()] == []
            assert [b.id async for b in two.batches.list()] == []
            for file_id in (batch.input_file_id, done.output_file_id):
                with pytest.raises(openai.NotFoundError):
                    await two.files.retrieve(file_id)
                with pytest.raises(openai.NotFoundError):
                    await two.files.content(file_id)
                with pytest.raises(openai.NotFoundError):
                    await two.files.delete(file_id)
                with pytest.raises(openai.NotFoundError):
                    await two.files.list(after=file_id)
            with pytest.raises(openai.NotFoundError):
                await two.batches.retrieve(batch.id)
            with pytest.raises(openai.NotFoundError):
                await two.batches.cancel(batch.id)
            with pytest.raises(openai.NotFoundError):
                await two.batches.create(
                    input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"
                )
            assert len([f async for f in one.files.list()]) == 2
