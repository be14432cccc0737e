"""The data of the dashboard, over HTTP."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.entrypoints.openai import gate
from octavo.entrypoints.web.feed import REFRESH_SECONDS
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import serving
from tests.entrypoints.openai.live import Live, live
from tests.entrypoints.openai.test_openapi import check_reply
from tests.tiny_model import write_tiny_llama

SECRET = "the-secret-of-the-house"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A real core around a fake executor."""
    model = write_tiny_llama(tmp_path_factory.mktemp("model"))
    with fake_server(model) as s:
        yield s


def fake_server(model: Path, *options: str) -> Any:
    fake = ("--distributed-executor-backend", "fake", "--fake-step-time", "0.01")
    pool = ("--num-gpu-blocks-override", "120", "--max-num-seqs", "3")
    return live(str(model), *fake, *pool, *options)


def state(server: Live, query: str = "") -> dict[str, Any]:
    reply = server.get(f"/v1/engine/state{query}")
    assert reply.status == 200, reply.body
    check_reply("GET", "/v1/engine/state", reply)
    value: dict[str, Any] = reply.json
    return value


def test_what_a_load_looks_like(server: Live) -> None:
    """Tokens of all steps are those of the requests; places and blocks are those of the pool."""
    first = state(server)["view"]
    prompts = [f"{SECRET} {SECRET} number {i}" for i in range(5)]  # a token per character
    bodies = [{"prompt": p, "max_tokens": 60, "ignore_eos": True, "user": SECRET} for p in prompts]

    async def run() -> list[dict[str, Any]]:
        posts = [asyncio.ensure_future(server.apost("/v1/completions", b)) for b in bodies]
        views = []
        while not all(post.done() for post in posts):
            reply = await server.request("GET", "/v1/engine/state", None, {})
            assert SECRET.encode() not in reply.body
            views.append(reply.json["view"])
            await asyncio.sleep(0.05)
        assert all(post.result().status == 200 for post in posts)
        return views

    views = asyncio.run(run())
    running = [v for v in views if v["stats"].get("num_running")]
    waiting = [r for v in running for r in v["requests"] if r["status"] == "waiting"]
    assert {r["reason"] for r in waiting} <= {"places", "tokens", "next"}
    assert "places" in {r["reason"] for r in waiting}
    for view in running:
        flags = np.frombuffer(base64.b64decode(view["blocks"]["flags"]), np.uint8)
        assert len(flags) == view["blocks"]["num_blocks"] == 120
        assert np.count_nonzero(flags & 127) == view["stats"]["num_used_blocks"]
        held = sum(r["num_blocks"] for r in view["requests"])
        assert held == int((flags & 127).sum())
    assert any((np.frombuffer(base64.b64decode(v["blocks"]["flags"]), np.uint8) & 127).max() > 1
               for v in running)  # fmt: skip
    time.sleep(1.1 * REFRESH_SECONDS)
    view = state(server)["view"]
    counts = np.array([e[1:4] for s in view["steps"] for e in s[6]])
    cached = view["stats"]["prefix_hits"] - first["stats"].get("prefix_hits", 0)
    assert cached > 0
    assert counts[:, 0].sum() == sum(map(len, prompts)) - cached
    assert counts[:, 1].sum() == 5 * 59  # each one's last token is never computed
    assert view["steps"][-1][5] == view["stats"]["generation_tokens"]
    assert len({e[0] for s in view["steps"] for e in s[6]}) == 5
    assert {r["status"] for r in view["requests"]} == {"finished"}
    last = view["steps"][-1][0]
    assert not state(server, f"?after_step={last}")["view"]["steps"]
    assert len(state(server, f"?after_step={last - 2}")["view"]["steps"]) == 2


def test_a_block(server: Live) -> None:
    server.post("/v1/completions", {"prompt": list(range(60, 100)), "max_tokens": 1})
    flags = base64.b64decode(state(server)["view"]["blocks"]["flags"])
    block_id = next(i for i, flag in enumerate(flags) if flag == 128)
    block = state(server, f"?block={block_id}")["view"]["block"]
    assert re.fullmatch("[0-9a-f]{8}", block["hash_prefix"])
    assert (block["ref_cnt"], block["holders"]) == (0, [])
    assert state(server, "?block=100000")["view"]["block"] is None


def test_wrong_queries(server: Live) -> None:
    for query, param in (
        ("block=-1", "block"),
        ("block=x", "block"),
        ("after_step=-2", "after_step"),
        ("after_step=1&after_step=2", "after_step"),
        ("nope=1", "nope"),
        ("block=99999999999999999999", "block"),
    ):
        reply = server.get(f"/v1/engine/state?{query}")
        assert reply.status == 400, query
        assert reply.error["param"] == param
    reply = server.get("/v1/engine/state?model=nope")
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


async def test_watchers_share_what_the_core_is_asked() -> None:
    engine = FakeEngine(num_blocks=100)
    async with serving(engine) as s:
        replies = await asyncio.gather(*(s.get("/v1/engine/state") for _ in range(20)))
        assert {r.status for r in replies} == {200}
        assert engine.looks == 1


async def test_large_pools_are_sent_small() -> None:
    async with serving(FakeEngine(num_blocks=100_000)) as s:
        plain = await s.get("/v1/engine/state")
        packed = await s.get("/v1/engine/state", accept_encoding="gzip")
        assert len(plain.body) < 1_000_000
        assert len(packed.body) < 10_000
        assert json.loads(gzip.decompress(packed.body))["view"]["blocks"]["num_blocks"] == 100_000


async def test_looking_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever an earlier test has configured.
    monkeypatch.setattr(gate.logger, "handlers", [caplog.handler])
    monkeypatch.setattr(gate.logger, "propagate", False)
    gate.logger.setLevel(logging.INFO)
    monkeypatch.setattr(gate.logger, "disabled", False)
    async with serving() as s:
        await s.get("/v1/engine/state")
        await s.get("/v1/engine/state?block=x")
    gate.logger.setLevel(logging.NOTSET)
    lines = [r.getMessage() for r in caplog.records if "engine/state" in r.getMessage()]
    assert len(lines) == 1
    assert " 400 " in lines[0]


async def test_a_dead_engine() -> None:
    engine = FakeEngine()
    async with serving(engine) as s:
        engine.die()
        reply = await s.get("/v1/engine/state")
        assert (reply.status, reply.error["code"]) == (503, "engine_dead")
