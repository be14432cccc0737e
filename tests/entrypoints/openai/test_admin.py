from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import eventually, serving

DEV = {"server_dev_mode": True}


async def test_only_in_dev_mode() -> None:
    async with serving() as s:
        for method, path in (
            *(("POST", f"/{name}") for name in ("pause", "resume", "abort", "abort_requests")),
            *(("POST", "/reset_prefix_cache"), ("GET", "/is_paused"), ("GET", "/server_info")),
        ):
            assert (await s.request(method, path, {}, {})).status == 404
            assert path not in (await s.get("/openapi.json")).json["paths"]
    async with serving(api_key=["k"], **DEV) as s:
        assert (await s.post("/pause", None)).status == 401
        assert (await s.get("/server_info", authorization="Bearer k")).status == 200


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
async def test_pause(mode: str) -> None:
    """Requests that have begun end, go on, or stay; new ones wait until the server is resumed."""
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine, **DEV) as s:
        begun = asyncio.ensure_future(s.completion("count", max_tokens=100))
        await eventually(lambda: engine.stats().num_running == 1)
        assert (await s.post(f"/pause?mode={mode}", None)).json == {"status": "paused"}
        assert (await s.get("/is_paused")).json == {"is_paused": True}
        late = asyncio.ensure_future(s.completion("SAY:hello"))
        await eventually(lambda: s.server.admission.num_reqs == 1)
        if mode == "keep":
            await asyncio.sleep(0.05)
            assert not begun.done()
        else:
            reply = await begun
            assert reply.status == (503 if mode == "abort" else 200)
        assert not late.done()
        assert (await s.get("/health")).status == 200
        assert (await s.post("/resume", None)).json == {"status": "resumed"}
        assert (await s.get("/is_paused")).json == {"is_paused": False}
        assert (await late).json["choices"][0]["text"] == "hello"
        await begun


async def test_abort_by_id() -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine, **DEV) as s:
        body = {"token_ids": [1], "sampling_params": {"max_tokens": 4000}}
        count = [{"role": "user", "content": "count"}]
        message = {"model": "fake", "max_tokens": 4000, "messages": count}
        sent = [
            asyncio.ensure_future(s.completion("count", max_tokens=4000, request_id="one")),
            asyncio.ensure_future(s.post("/inference/v1/generate", body, x_request_id="two-2")),
            asyncio.ensure_future(s.completion("count", max_tokens=200, request_id="three")),
            asyncio.ensure_future(s.post("/v1/messages", message, x_request_id="four-4")),
        ]
        await eventually(lambda: engine.stats().num_running == 4)
        for name, number in (
            *(("on", 0), ("cmpl-one-0", 0), ("cmpl-one", 1), ("cmpl-one", 0)),
            *(("", 0), ("4", 0), ("four-4", 1)),
        ):
            reply = await s.post("/abort", {"request_ids": [name, name]})
            assert reply.json == {"num_aborted": number}, name
        reply = await s.post("/abort_requests", {"request_ids": ["two-2"]})
        assert reply.json == {"num_aborted": 1}
        one, two, three, four = await asyncio.gather(*sent)
        assert four.status == 503
        assert (one.status, one.error["code"]) == (503, "aborted")
        [choice] = two.json["choices"]
        assert choice["finish_reason"] == "abort"
        assert choice["token_ids"]
        assert three.status == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/pause?mode=stop", None, "mode"),
        ("/pause?clear_cache=perhaps", None, "clear_cache"),
        ("/pause?wait=1", None, "wait"),
        ("/abort", {}, "request_ids"),
        ("/abort", {"request_ids": [1]}, "request_ids"),
        ("/abort", {"request_ids": ["a"] * 1025}, "request_ids"),
    ],
)
async def test_wrong_requests(path: str, body: Any, param: str) -> None:
    async with serving(**DEV) as s:
        reply = await s.post(path, body)
        assert (reply.status, reply.error["param"]) == (400, param)


async def test_reset_and_load() -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine, **DEV) as s:
        assert (await s.post("/reset_prefix_cache", None)).json == {"reset": True}
        running = asyncio.ensure_future(s.completion("count", max_tokens=100))
        await eventually(lambda: engine.stats().num_running == 1)
        assert (await s.post("/reset_prefix_cache", None)).json == {"reset": False}
        assert (await s.get("/load")).json == {"server_load": 1}
        await running
        info = (await s.get("/server_info")).json
        assert info["engines"]["fake"]["scheduler"]["max_num_seqs"] == 512
