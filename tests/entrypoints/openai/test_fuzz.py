"""Bodies at random: each is answered or refused, and the server goes on."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator
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


ENTRY = {"token": "token_id:104", "logprob": -1.0, "bytes": [104], "top_logprobs": []}
CHOICE = {"index": 0, "token_ids": [104], "finish_reason": "stop", "logprobs": {"content": [ENTRY]}}
USAGE = {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1}
MADE = {
    "request_id": "r",
    "model": MODEL,
    "choices": [CHOICE],
    "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 0}},
    "prompt_logprobs": [None, {"104": {"logprob": -1.0, "rank": 1, "decoded_token": "h"}}],
}
USER = [{"role": "user", "content": "SAY:hi"}]
CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
TURNS = [
    *USER,
    {"role": "assistant", "content": [{"type": "text", "text": "x"}, CALL]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]},
]
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {"x": {"type": "string"}}}}
FUNCTION = {"name": "f", "parameters": TOOL["input_schema"]}
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "SAY:x"}]},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": "x"},
]
NESTED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": USER,
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "max_tokens": 3,
    },
    "/v1/messages": {
        "model": MODEL,
        "max_tokens": 3,
        "messages": TURNS,
        "tools": [TOOL],
        "tool_choice": {"type": "tool", "name": "f"},
        "thinking": {"type": "enabled", "budget_tokens": 5},
        "system": [{"type": "text", "text": "x"}],
    },
    "/v1/responses": {
        "input": ITEMS,
        "max_output_tokens": 3,
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
        "tools": [{"type": "function", **FUNCTION}],
        "reasoning": {"effort": "low"},
    },
    "/v1/chat/completions/derender": {
        "chat_request": {"messages": USER, "logprobs": True, "echo": True, "prompt_logprobs": 1},
        "generate_response": MADE,
    },
    "/v1/completions/derender": {
        "completion_request": {"prompt": "hh", "logprobs": 1, "echo": True, "prompt_logprobs": 1},
        "generate_responses": [MADE],
        "prompt_tokens": [2],
    },
    "/v1/embeddings": {"messages": USER, "chat_template_kwargs": {"shout": True}},
    "/v1/rerank": {"query": "a", "documents": ["b", {"text": "c"}]},
    "/inference/v1/generate": {
        "token_ids": [104],
        "sampling_params": {"max_tokens": 2, "structured_outputs": {"regex": "a"}},
    },
}


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is something in a JSON value, itself apart."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        yield (*place, key)
        if isinstance(child, (dict, list)):
            yield from places(child, (*place, key))


def mutated(body: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The body with something else in one place, or nothing, or more of the same."""
    body = copy.deepcopy(body)
    *place, last = rng.choice(list(places(body)))
    parent: Any = body
    for key in place:
        parent = parent[key]
    kind = rng.random()
    if kind < 0.15:
        del parent[last]
    elif kind < 0.3 and isinstance(parent[last], list):
        parent[last] = parent[last] * rng.randrange(4)
    else:
        parent[last] = rng.choice(VALUES)
    return body


async def test_something_else_anywhere() -> None:
    rng = random.Random(0)
    statuses: Counter[int] = Counter()
    async with serving(FakeEngine()) as s:
        reader, writer = await s.connect()
        for i in range(1000):
            path = list(NESTED)[i % len(NESTED)]
            body = mutated(NESTED[path], rng)
            writer.write(request_bytes("POST", path, body, {}))
            reply = await read_reply(reader)
            statuses[reply.status] += 1
            assert reply.status in (200, 400, 404), (path, body, reply.body)
        await close(writer)
    assert statuses[200] > 100
    assert statuses[400] > 100
