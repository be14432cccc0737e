"""Bodies at random: each is answered or refused, and the server goes on."""

from __future__ import annotations

import random
from typing import Any

from octavo.entrypoints.openai import protocol
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import MODEL, close, read_reply, request_bytes, serving

ROUTES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "/v1/chat/completions": (
        protocol.ChatCompletionRequest,
        protocol.CHAT_UNSUPPORTED,
        {"messages": [{"role": "user", "content": "SAY:hi"}], "max_tokens": 3},
    ),
    "/v1/completions": (
        protocol.CompletionRequest,
        protocol.COMPLETION_UNSUPPORTED,
        {"prompt": "SAY:hi", "max_tokens": 3},
    ),
    "/tokenize": (protocol.TokenizeRequest, protocol.TOKENIZE_UNSUPPORTED, {"prompt": "hi"}),
    "/detokenize": (protocol.DetokenizeRequest, {}, {"tokens": [104]}),
}
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 256, 259, 10**6, 2**31, -(2**63), 2**64, 10**30),
    *(0.0, 0.5, -0.5, 1.0, 2.5, 1e-38, 1e300, -1e300),
    *("", "a", "fake", "auto", "none", "required", "é👍", "\x00", "x" * 300, "{{ x }}", "5"),
    *([], [0], [-1], [259], ["a"], [""], [[]], [[97]], [None], [True], [1.5], [{}], ["a", 1]),
    *({}, {"a": 1}, {"5": 1}, {"5": "x"}, {"type": "text"}, {"include_usage": True}, {"": None}),
    [{"role": "user", "content": "x"}],
    [{"role": "assistant", "content": None}],
    [{"role": "user", "content": [{"type": "text", "text": "y"}]}],
    [{"type": "function", "function": {"name": "f"}}],
]


async def test_random_bodies() -> None:
    rng = random.Random(0)
    statuses: dict[int, int] = {}
    async with serving(FakeEngine()) as s:
        reader, writer = await s.connect()
        for _ in range(1500):
            path = rng.choice(list(ROUTES))
            request, unsupported, body = ROUTES[path]
            body = {"model": MODEL, **body}
            names = [*request.__struct_fields__, *unsupported, "zzz"]
            for name in rng.choices(names, k=rng.randrange(1, 3)):
                body[name] = rng.choice(VALUES) if rng.random() < 0.7 else None
            if rng.random() < 0.1:
                body.pop(rng.choice(list(body)))
            writer.write(request_bytes("POST", path, body, {}))
            reply = await read_reply(reader)
            statuses[reply.status] = statuses.get(reply.status, 0) + 1
            assert reply.status in (200, 400, 404), (path, body, reply.body)
            if reply.status != 200:
                assert reply.error["type"] == "invalid_request_error"
            elif reply.headers["content-type"] == "application/json":
                assert reply.json
            else:
                assert not any("error" in event for event in reply.events), (path, body)
        await close(writer)
    assert statuses[200] > 100
    assert statuses[400] > 100
