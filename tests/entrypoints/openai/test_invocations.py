"""POST /invocations is the route that the body's fields are of."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.entrypoints.openai.harness import MODEL, serving

USER = [{"role": "user", "content": "SAY:hello"}]
CHANGING = {"id", "created"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": USER}),
        ("/v1/chat/completions", {"messages": USER, "prompt": None, "model": MODEL}),
        ("/v1/completions", {"prompt": "SAY:a", "max_tokens": 3}),
        ("/v1/embeddings", {"input": ["a", "b"]}),
        ("/v1/score", {"text_1": "a", "text_2": ["a", "b"]}),
        ("/v1/score", {"queries": "a", "documents": ["a", "b"]}),
        ("/v1/rerank", {"query": "a", "documents": ["a", "b"]}),
    ],
    ids=str,
)
async def test_the_same_answer(path: str, body: dict[str, Any]) -> None:
    async with serving() as s:
        invoked, direct = await s.post("/invocations", body), await s.post(path, body)
        assert invoked.status == direct.status == 200, invoked.body
        answers = [reply.json for reply in (invoked, direct)]
        for answer in answers:
            for name in CHANGING & answer.keys():
                del answer[name]
            answer["usage"].pop("prompt_tokens_details", None)  # the second one finds a prefix
        assert answers[0] == answers[1]


async def test_a_byte_order_mark() -> None:
    async with serving() as s:
        body = b"\xef\xbb\xbf" + json.dumps({"messages": USER}).encode()
        assert (await s.post("/invocations", body)).status == 200


async def test_a_stream() -> None:
    async with serving() as s:
        events = (await s.post("/invocations", {"messages": USER, "stream": True})).events
        assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == "hello"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "no kind of request"),
        ({"messages": None}, "no kind of request"),
        ({"documents": ["a"]}, "no kind of request"),
        ({"text_1": "a"}, "no kind of request"),
        ([], "must be a JSON object"),
        (b"{", "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b"[" * 5000, "not valid JSON|too deep"),
        ({"messages": USER, "zzz": 1}, "unknown field 'zzz'"),
        ({"messages": USER, "prompt": "a"}, "messages"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_what_is_refused(body: Any, message: str) -> None:
    async with serving() as s:
        reply = await s.post("/invocations", body)
        assert reply.status == 400
        assert any(part in reply.error["message"] for part in message.split("|"))


async def test_limits_are_the_same() -> None:
    async with serving(max_request_bytes=100) as s:
        assert (await s.post("/invocations", {"prompt": "a" * 200})).status == 413
        assert (
            await s.post("/invocations", b"a=1", **{"content-type": "text/plain"})
        ).status == 415
        reply = await s.post("/invocations", {"prompt": "a", "model": "other"})
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
