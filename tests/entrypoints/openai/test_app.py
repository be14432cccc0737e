from __future__ import annotations

import asyncio

from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.http_server import HEALTH_INTERVAL
from octavo.version import __version__
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import MODEL, eventually, serving


async def test_information() -> None:
    async with serving(FakeEngine(max_model_len=123)) as s:
        assert (await s.get("/health")).json == {"status": "ok"}
        assert (await s.get("/version")).json == {"version": __version__}
        models = (await s.get("/v1/models")).json
        [card] = models["data"]
        assert models["object"] == "list"
        assert (card["id"], card["object"], card["max_model_len"]) == (MODEL, "model", 123)
        assert (await s.get(f"/v1/models/{MODEL}")).json == card


async def test_unknown_models() -> None:
    async with serving() as s:
        for reply in (
            await s.completion(model="gpt-4"),
            await s.chat(model="gpt-4", stream=True),
            await s.post("/tokenize", {"model": "x/y", "prompt": "a"}),
            await s.post("/detokenize", {"model": "x" * 9999, "tokens": []}),
            await s.get("/v1/models/a/b/c"),
        ):
            assert reply.status == 404
            assert reply.error["code"] == "model_not_found"
            assert len(reply.body) < 400


async def test_the_model_may_be_left_out() -> None:
    async with serving() as s:
        for body in ({"prompt": "SAY:x"}, {"prompt": "SAY:x", "model": None}):
            reply = await s.post("/v1/completions", body)
            assert reply.json["model"] == MODEL


async def test_unknown_routes_and_methods() -> None:
    async with serving() as s:
        for path in ("/nope", "/v1", "/v1/completions/", "/health/", "/" + "x" * 5000, "/%00"):
            reply = await s.get(path)
            assert reply.status == 404, path
            assert reply.error["type"] == "invalid_request_error"
        for method, path in (("GET", "/v1/completions"), ("POST", "/health"), ("PUT", "/tokenize")):
            reply = await s.request(method, path, None, {})
            assert reply.status == 405
            assert reply.error
            assert "allow" in reply.headers


async def test_documentation_can_be_off() -> None:
    async with serving(disable_fastapi_docs=True) as s:
        assert (await s.get("/docs")).status == 404
        assert (await s.get("/openapi.json")).status == 404


async def test_a_bug_is_a_500_without_internals() -> None:
    class Buggy(FakeEngine):
        async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            raise KeyError("secret of the house")

        async def run(self, request, request_id, **options):  # type: ignore[no-untyped-def]
            async for output in super().run(request, request_id, **options):
                yield output
                raise ValueError("secret of the house")

    async with serving(Buggy()) as s:
        for body in ({"prompt": "a"}, {"prompt": "a", "stream": True}):
            reply = await s.post("/v1/completions", body)
            assert reply.status == 500
            assert "secret" not in reply.body.decode()
            assert reply.error["code"] == "internal_error"
        events = (await s.completion([97], stream=True, max_tokens=5)).events
        assert events[-1]["error"]["code"] == "internal_error"
        assert "secret" not in str(events)
        assert (await s.get("/health")).status == 200


async def test_the_queue_is_bounded() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    async with serving(engine, max_num_queued_reqs=3, max_num_queued_tokens=100) as s:
        two = asyncio.ensure_future(s.completion("a" * 50, n=2))
        await eventually(lambda: s.server.admission.num_reqs == 2)
        assert s.server.admission.num_tokens == 50
        for fields in ({"n": 2}, {"n": 2, "stream": True}):
            reply = await s.completion("b", **fields)
            assert reply.status == 503
            assert reply.headers["retry-after"] == "1"
            assert reply.error["code"] == "queue_full"
        assert (await s.completion("b" * 51)).status == 503
        one = asyncio.ensure_future(s.completion("b" * 50))
        await eventually(lambda: s.server.admission.num_reqs == 3)
        assert (await s.get("/health")).status == 200
        assert (await s.post("/tokenize", {"prompt": "a"})).status == 503
        engine.gate.set()
        assert [r.status for r in await asyncio.gather(one, two)] == [200, 200]
        assert (await s.completion("c" * 500)).status == 200  # alone, whatever its size
        metrics = await s.metrics()
        assert metrics['admission_rejections_total{reason="queued_reqs"}'] == 3
        assert metrics['admission_rejections_total{reason="queued_tokens"}'] == 1


async def test_running_requests_are_not_queued() -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine, max_num_queued_reqs=1) as s:
        tasks = []
        for i in range(4):
            tasks.append(asyncio.ensure_future(s.completion("count", max_tokens=300)))
            await eventually(lambda n=i + 1: engine.stats().num_running == n)
        assert [r.status for r in await asyncio.gather(*tasks)] == [200] * 4


async def test_health_of_a_dead_engine() -> None:
    engine = FakeEngine()
    async with serving(engine) as s:
        engine.die()
        reply = await s.get("/health")
        assert reply.status == 503
        assert reply.error["code"] == "engine_dead"
        reply = await s.completion()
        assert reply.status == 503
        assert await s.task == 1


async def test_health_of_an_unresponsive_engine() -> None:
    """It is told, and the server goes on: the engine may come back."""
    engine = FakeEngine()
    async with serving(engine) as s:
        engine.is_unresponsive = True
        reply = await s.get("/health")
        assert (reply.status, reply.error["code"]) == (503, "engine_unresponsive")
        assert "not been heard of" in reply.error["message"]
        await asyncio.sleep(2 * HEALTH_INTERVAL)
        engine.is_unresponsive = False
        assert (await s.get("/health")).status == 200
        assert (await s.completion()).status == 200


def test_errors_have_no_stack() -> None:
    assert APIError(418, "x").response().status_code == 418
