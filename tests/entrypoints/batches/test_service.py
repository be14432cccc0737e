"""How batches run beside other requests."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from octavo.contracts.messages import RequestOutput, ServiceClass
from octavo.entrypoints.batches.jobs import Jobs
from octavo.entrypoints.batches.lines import LineResult
from octavo.entrypoints.batches.service import batch_folder
from octavo.entrypoints.batches.store import Store
from octavo.entrypoints.openai.config import ServerConfig
from tests.entrypoints.batches.batch_lab import (
    chat_line,
    content_of,
    create,
    said,
    say_lines,
    until,
)
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import eventually, serving
from tests.entrypoints.openai.official_client import client_of


def classes_in(engine: FakeEngine) -> list[ServiceClass]:
    return [s.request.service_class for s in (*engine._waiting.values(), *engine._running.values())]


async def test_lines_are_of_the_class_batch_and_refuse_nobody(tmp_path: Path) -> None:
    engine = FakeEngine(max_num_seqs=40)
    engine.gate.clear()
    async with (
        serving(engine, batch_dir=str(tmp_path), max_num_queued_reqs=1) as s,
        client_of(s) as client,
    ):
        batch = await create(client, [*say_lines(100), chat_line("n", "SAY:#", n=3)])
        await eventually(lambda: len(classes_in(engine)) == 30)  # three quarters of 40
        assert set(classes_in(engine)) == {ServiceClass.BATCH}
        metrics = await s.metrics()
        assert metrics["batch_lines_running"] == 30
        assert metrics["batch_lines_waiting"] == 71
        assert metrics["batches_running"] == 1
        interactive = asyncio.ensure_future(s.chat())
        await eventually(lambda: ServiceClass.INTERACTIVE in classes_in(engine))
        engine.gate.set()
        assert (await interactive).status == 200
        await until(client, batch.id, "completed")


async def test_a_lines_answer_is_that_of_the_route(tmp_path: Path) -> None:
    async with serving(batch_dir=str(tmp_path)) as s, client_of(s) as client:
        options: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "n": 2, "max_tokens": 9}
        batch = await create(client, [chat_line("a", "SAY:hello #", **options)])
        done = await until(client, batch.id, "completed")
        (result,) = await content_of(client, done.output_file_id)
        single = (await s.chat("SAY:hello #", **options)).json
        for answer in (single, result["response"]["body"]):
            del answer["id"], answer["created"], answer["usage"]["prompt_tokens_details"]
        assert result["response"]["body"] == single


async def test_batches_take_turns(tmp_path: Path) -> None:
    """A short batch is not behind all lines of a long one that came before."""
    engine = FakeEngine(step_seconds=0.001)
    async with (
        serving(engine, batch_dir=str(tmp_path), max_batch_lines_in_flight=4) as s,
        client_of(s) as client,
    ):
        long = await create(client, say_lines(400))
        short = await create(client, say_lines(10))
        await until(client, short.id, "completed")
        assert (await client.batches.retrieve(long.id)).status == "in_progress"
        done = await until(client, long.id, "completed")
        results = await content_of(client, done.output_file_id)
        assert {r["custom_id"]: said(r) for r in results} == {
            f"r{i}": f"answer {i}" for i in range(400)
        }


async def test_a_server_that_stops_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    engine = FakeEngine(step_seconds=0.005)
    async with (
        serving(engine, batch_dir=str(tmp_path), max_batch_lines_in_flight=5) as s,
        client_of(s) as client,
    ):
        batch = await create(client, say_lines(60))
        await until(client, batch.id, "in_progress")
        s.stop.request()
        await asyncio.wait_for(asyncio.shield(s.task), 20)
    async with serving(batch_dir=str(tmp_path)) as s, client_of(s) as client:
        done = await until(client, batch.id, "completed")
        results = await content_of(client, done.output_file_id)
        assert sorted(r["custom_id"] for r in results) == sorted(f"r{i}" for i in range(60))


async def test_a_line_that_the_next_server_finds_too_long(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.gate.clear()
    async with serving(engine, batch_dir=str(tmp_path)) as s, client_of(s) as client:
        batch = await create(client, say_lines(2))
        await until(client, batch.id, "in_progress")
        s.stop.request()
        await asyncio.wait_for(asyncio.shield(s.task), 20)
    async with (
        serving(batch_dir=str(tmp_path), max_request_bytes=50) as s,
        client_of(s) as client,
    ):
        failed = await until(client, batch.id, "failed")
        assert failed.errors is not None
        assert [e.code for e in failed.errors.data or ()] == ["line_too_long"]


async def test_lines_wait_for_the_tokens_of_their_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.entrypoints.batches.line_runner.RETRY_SECONDS", 0.01)
    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": [{"name": "me", "key": "k", "tokens_per_minute": 600}]}')
    keys.chmod(0o600)
    async with (
        serving(batch_dir=str(tmp_path / "b"), api_key_file=str(keys)) as s,
        client_of(s, "k") as client,
    ):
        batch = await create(client, say_lines(30))
        (key,) = s.server.keys
        await eventually(lambda: key.account.rejections["key_tokens"])
        batches = s.server.batches
        assert batches is not None
        await eventually(lambda: batches.num_finished["completed"])
        stored = await client.batches.retrieve(batch.id)  # though no token is left
        assert stored.status == "in_progress"
        assert stored.request_counts is not None
        assert stored.request_counts.failed == 0
        assert key.account.generation_tokens
        assert (await client.batches.cancel(batch.id)).status == "cancelling"


async def test_a_line_that_never_fits_its_key_is_an_error(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": [{"name": "me", "key": "k", "tokens_per_minute": 600}]}')
    keys.chmod(0o600)
    async with (
        serving(batch_dir=str(tmp_path / "b"), api_key_file=str(keys)) as s,
        client_of(s, "k") as client,
    ):
        batch = await create(client, [chat_line("long", "x" * 700 + "SAY:a"), *say_lines(1)])
        ended = await until(client, batch.id, "completed")
        (failed,) = await content_of(client, ended.error_file_id)
        assert failed["custom_id"] == "long"
        assert failed["response"]["status_code"] == 429
        assert len(await content_of(client, ended.output_file_id)) == 1


class Endless(FakeEngine):
    """Its beam search never ends."""

    async def search(self, *args: Any, **options: Any) -> RequestOutput:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_line_that_takes_too_long_is_an_error(tmp_path: Path) -> None:
    """And is not tried for ever."""
    async with (
        serving(Endless(), batch_dir=str(tmp_path), request_timeout=0.05) as s,
        client_of(s) as client,
    ):
        batch = await create(client, [chat_line("slow", "x", use_beam_search=True, n=2)])
        ended = await until(client, batch.id, "completed")
        (failed,) = await content_of(client, ended.error_file_id)
        assert failed["response"]["body"]["error"]["code"] == "request_timeout"


async def test_a_key_that_is_taken_back_runs_no_more_lines(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.gate.clear()
    keys = tmp_path / "keys.json"

    def write(*names: str) -> None:
        entries = ",".join(f'{{"name": "{name}", "key": "{name}"}}' for name in names)
        keys.write_text(f'{{"keys": [{entries}]}}')
        keys.chmod(0o600)

    write("a", "b")
    async with (
        serving(
            engine,
            batch_dir=str(tmp_path / "b"),
            api_key_file=str(keys),
            max_batch_lines_in_flight=1,
        ) as s,
        client_of(s, "a") as client,
    ):
        batch = await create(client, say_lines(4))
        batches = s.server.batches
        assert batches is not None
        await eventually(lambda: engine.num_unfinished)
        write("b")
        s.server.keys.reload()
        engine.gate.set()
        await eventually(lambda: batches.num_active == 0)
        stored = await batches.call(lambda store: store.batches.get("a", batch.id))
        assert stored.status == "completed"
        assert (stored.request_counts.completed, stored.request_counts.failed) == (1, 3)


async def test_no_room_for_results(tmp_path: Path) -> None:
    async with (
        serving(
            batch_dir=str(tmp_path), max_batch_storage_bytes=9000, max_batch_lines_in_flight=2
        ) as s,
        client_of(s) as client,
    ):
        failed = await until(client, (await create(client, say_lines(40))).id, "failed")
        assert failed.errors is not None
        assert [e.code for e in failed.errors.data or ()] == ["storage_full"]
        results = await content_of(client, failed.output_file_id)  # what there was room for
        assert failed.request_counts is not None
        assert 0 < len(results) == failed.request_counts.completed < 40


async def test_a_store_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(batch_dir=str(tmp_path / "b")) as s, client_of(s) as client:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "mkdir", partial(_fail, errno.EROFS))
            for path in ("/v1/files", "/v1/batches"):
                reply = await s.get(path)
                assert (reply.status, reply.error["code"]) == (503, "storage_unavailable")
                assert reply.headers["retry-after"]
        batch = await create(client, say_lines(1))
        await until(client, batch.id, "completed")


@pytest.mark.parametrize("broken", [errno.EROFS, errno.ENOSPC])
async def test_a_batch_goes_on_when_the_store_can_be_used_again(
    broken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits, and begins anew; no line is in the results twice."""
    monkeypatch.setattr("octavo.entrypoints.batches.service.RETRY_SECONDS", 0.1)
    add_results = Jobs.add_results
    calls: list[int] = []

    def first_only(jobs: Jobs, batch_id: str, results: Sequence[LineResult]) -> None:
        calls.append(len(results))
        if len(calls) > 1:
            _fail(broken)
        add_results(jobs, batch_id, results)

    options = {"batch_dir": str(tmp_path), "max_batch_lines_in_flight": 2}
    async with serving(**options) as s, client_of(s) as client:
        with monkeypatch.context() as patch:
            patch.setattr(Jobs, "add_results", first_only)
            batch = await create(client, say_lines(20))
            await eventually(lambda: len(calls) > 3)
            waiting = await client.batches.retrieve(batch.id)
            assert waiting.status == "in_progress"
            assert waiting.request_counts is not None
            assert waiting.request_counts.completed == calls[0]
        completed = await until(client, batch.id, "completed")
        results = await content_of(client, completed.output_file_id)
        assert sorted(said(r) for r in results) == sorted(f"answer {i}" for i in range(20))


def _fail(number: int, *args: object, **options: object) -> None:
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/nope"}, "endpoint"),
        ({"completion_window": "1 day"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"output_expires_after": {"anchor": "x", "seconds": 9}}, "output_expires_after.anchor"),
        ({"priority": 1}, "priority"),
    ],
)  # fmt: skip
async def test_bad_batches(tmp_path: Path, fields: dict[str, Any], param: str) -> None:
    async with serving(batch_dir=str(tmp_path)) as s:
        body = {"input_file_id": "f", "endpoint": "/v1/completions", "completion_window": "24h"}
        reply = await s.post("/v1/batches", {**body, **fields})
        assert (reply.status, reply.error["param"]) == (400, param)
        for path in ("/v1/batches/nope", "/v1/batches?limit=101", "/v1/batches?after=nope"):
            assert (await s.get(path)).status in (400, 404)
        assert (await s.post("/v1/batches/nope/cancel", {})).status == 404


async def test_nothing_is_created_before_there_is_something(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    async with serving(batch_dir=str(folder)) as s:
        await s.chat()
        assert not folder.exists()
        assert (await s.get("/v1/files")).json["data"] == []
        assert folder.exists()


async def test_what_another_process_stores_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.entrypoints.batches.service.POLL_SECONDS", 0.01)
    async with serving(batch_dir=str(tmp_path)) as s, client_of(s) as client:
        async with serving(batch_dir=str(tmp_path)) as t, client_of(t) as other:
            done = await until(other, (await create(other, say_lines(3))).id, "completed")
            assert await client.batches.retrieve(done.id) == done
            one, two = (x.server.batches for x in (s, t))
            assert one is not None
            assert two is not None
            assert [await b.call(Store.take_lock) for b in (one, two)].count(True) == 1
        done = await until(client, (await create(client, say_lines(3))).id, "completed")


def test_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    folders = [
        batch_folder(ServerConfig(served_model_name=names), "some/model: 3")
        for names in (None, ["other"], ["other", "more"], ["../.."])
    ]
    assert len(set(folders)) == 4
    for folder in folders:
        assert folder is not None
        assert Path(folder).resolve().parent == tmp_path / "batches"
    assert batch_folder(ServerConfig(batch_dir="/x"), "m") == "/x"
    assert batch_folder(ServerConfig(batch_dir="/x", enable_batches=False), "m") is None
