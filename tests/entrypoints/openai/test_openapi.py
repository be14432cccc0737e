"""The OpenAPI document is complete and true: of every route, and of what the server answers."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from octavo.entrypoints.openai import admin, tokenization
from octavo.entrypoints.openai.app import ROUTES
from octavo.entrypoints.openai.openapi import documentation_routes, openapi_document
from octavo.entrypoints.openai.protocol import COMPLETION_UNSUPPORTED, ChatCompletionRequest
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import Reply, Running, all_routes, serving
from tests.entrypoints.openai.sse_client import streaming

ALL = (*ROUTES, *admin.ROUTES, *tokenization.INFO_ROUTES)
DOCUMENT = json.loads(json.dumps(openapi_document((*ALL, *documentation_routes(ALL)))))


def operation(method: str, path: str) -> dict[str, Any]:
    """What the document says of a request."""
    for template, operations in DOCUMENT["paths"].items():
        parts = [part if "{" not in part else None for part in template.split("/")]
        given = path.partition("?")[0].split("/")
        if len(parts) == len(given) and all(p in (None, g) for p, g in zip(parts, given)):
            found: dict[str, Any] = operations[method.lower()]
            return found
    raise AssertionError(f"{method} {path} is not in the document")


def check(schema: dict[str, Any], value: Any) -> None:
    """Raise unless a value is as a schema of the document says."""
    jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(
        value
    )


def check_reply(method: str, path: str, reply: Reply) -> None:
    """Raise unless the document has this status for this route, with such a body."""
    response = operation(method, path)["responses"][str(reply.status)]
    if "$ref" in response:
        response = DOCUMENT["components"]["responses"][response["$ref"].rpartition("/")[2]]
    kind = reply.headers["content-type"].partition(";")[0]
    schema = response["content"][kind]["schema"]
    if kind == "text/event-stream":
        for event in reply.events:
            check(schema, event)
    else:
        check(schema, reply.json if kind == "application/json" else reply.body.decode())


async def test_every_route_is_there() -> None:
    assert all_routes() == {
        (method.upper(), path)
        for path, operations in DOCUMENT["paths"].items()
        for method in operations
    }


def test_references_lead_somewhere() -> None:
    def walk(value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                walk(item)
        elif isinstance(value, dict):
            if "$ref" in value:
                target: Any = DOCUMENT
                for part in value["$ref"].removeprefix("#/").split("/"):
                    target = target[part]
            for item in value.values():
                walk(item)

    walk(DOCUMENT)
    for operations in DOCUMENT["paths"].values():
        for described in operations.values():
            assert described["summary"]


def test_request_schemas() -> None:
    schema = DOCUMENT["components"]["schemas"]["ChatCompletionRequest"]
    assert set(ChatCompletionRequest.__struct_fields__) < set(schema["properties"])
    assert schema["required"] == ["messages"]
    assert schema["additionalProperties"] is False
    body = operation("POST", "/v1/completions")["requestBody"]["content"]["application/json"]
    check(body["schema"], {"prompt": "a", "stop": ["b"], "suffix": ""})
    for wrong in ({}, {"prompt": "a", "suffix": "b"}, {"prompt": "a", "n": "2"}, {"prompts": 1}):
        with pytest.raises(jsonschema.ValidationError):
            check(body["schema"], wrong)
    completion = DOCUMENT["components"]["schemas"]["CompletionRequest"]["properties"]
    assert set(COMPLETION_UNSUPPORTED) < set(completion)


async def _exercise(s: Running) -> None:
    """Send good and bad requests of each kind; check every answer."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    chat = {"messages": [{"role": "user", "content": "SAY:hello"}]}
    bodies: list[tuple[str, Any]] = [
        ("/v1/completions", {"prompt": "SAY:a", "logprobs": 2, "return_token_ids": True}),
        ("/v1/completions", {"prompt": ["SAY:a", [1, 2]], "n": 2, "echo": True, "logprobs": 1}),
        ("/v1/completions", {"prompt": "SAY:abc", "stream": True, "logprobs": 2}),
        (
            "/v1/completions",
            {"prompt": "FAIL:", "stream": True, "stream_options": {"include_usage": True}},
        ),
        ("/v1/completions", {"prompt": "FAIL:"}),
        ("/v1/completions", {"prompt": "a", "n": 0}),
        ("/v1/completions", {"prompt": "a", "model": "other"}),
        ("/v1/completions", {"prompt": "a" * 5000}),
        ("/v1/completions", b"{"),
        ("/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 3}),
        ("/v1/chat/completions", {**chat, "stream": True, "return_token_ids": True}),
        (
            "/v1/chat/completions",
            {**chat, "stream": True, "stream_options": {"include_progress": True}},
        ),
        ("/v1/chat/completions", {**chat, "resumable": True}),
        ("/v1/chat/completions", {**chat, "tools": [tool], "prompt_logprobs": 1}),
        ("/v1/chat/completions", {"messages": []}),
        ("/tokenize", {"prompt": "abc", "return_token_strs": True}),
        ("/tokenize", {"prompt": "abc", "messages": []}),
        ("/detokenize", {"tokens": [97, 98]}),
        ("/inference/v1/generate", {"token_ids": list(b"SAY:ab")}),
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"logprobs": 2, "n": 2}}),
        ("/inference/v1/generate", {"token_ids": list(b"SAY:ab"), "stream": True}),
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"stop": "a"}}),
        ("/pause?mode=keep", None),
        ("/pause?mode=stop", None),
        ("/resume", None),
        ("/abort", {"request_ids": ["x"]}),
        ("/abort_requests", {"request_ids": "x"}),
        ("/reset_prefix_cache", None),
        ("/ping", None),
        ("/v1/embeddings", {"input": ["a", "b"]}),
        ("/v1/embeddings", {"input": [1, 2], "encoding_format": "base64", "dimensions": 2}),
        ("/v1/embeddings", {"input": []}),
        ("/v1/embeddings", {"input": "FAIL:"}),
        ("/pooling", {"input": "a"}),
        ("/pooling", {"input": "a", "task": "classify"}),
        *((path, {"text_1": "a", "text_2": ["b", "c"]}) for path in ("/score", "/v1/score")),
        ("/score", {"text_1": "a"}),
        *((p, {"query": "a", "documents": ["b"]}) for p in ("/rerank", "/v1/rerank", "/v2/rerank")),
        ("/rerank", {"query": "a", "documents": ["b", {"text": "c"}], "return_documents": False}),
        ("/rerank", {"query": "a", "documents": []}),
        ("/detokenize", {"tokens": [-1]}),
    ]
    for path, body in bodies:
        check_reply("POST", path, await s.post(path, body))
    for path in ("/ping", "/load", "/is_paused", "/server_info"):
        check_reply("GET", path, await s.get(path))
    for path in ("/health", "/version", "/metrics", "/v1/models", "/openapi.json", "/docs"):
        check_reply("GET", path, await s.get(path))
    check_reply("GET", "/v1/models/x", await s.get("/v1/models/fake"))
    check_reply("GET", "/v1/models/x", await s.get("/v1/models/nope"))
    check_reply("POST", "/tokenize", await s.post("/tokenize", {}, content_type="text/plain"))


async def test_answers_are_as_described() -> None:
    async with serving(FakeEngine(prefill_chunk=8), server_dev_mode=True) as s:
        await _exercise(s)
    async with serving(max_request_bytes=10) as s:
        check_reply("POST", "/tokenize", await s.post("/tokenize", {"prompt": "x" * 10}))
    async with serving(api_key=["k"]) as s:
        check_reply("GET", "/version", await s.get("/version"))
        check_reply("GET", "/health", await s.get("/health"))


async def test_resumable_streams_are_as_described() -> None:
    async with serving() as s:
        body = {"prompt": "SAY:a", "stream": True, "resumable": True}
        async with streaming(s, "/v1/completions", body) as stream:
            events = await stream.rest()
        path = f"/v1/streams/{stream.id}"
        described = operation("GET", path)
        assert {(p["name"], p["in"]) for p in described["parameters"]} == {
            ("stream_id", "path"),
            ("starting_after", "query"),
            ("Last-Event-ID", "header"),
        }
        content = described["responses"]["200"]["content"]
        assert list(content) == ["text/event-stream"]
        for event in events[:-1]:
            check(content["text/event-stream"]["schema"], event.json)
        check_reply("GET", path, await s.get(path + "?starting_after=99"))
        check_reply("GET", path, await s.get("/v1/streams/nope"))
        check_reply("DELETE", path, await s.request("DELETE", path, None, {}))
        check_reply("DELETE", path, await s.request("DELETE", path, None, {}))


async def test_pages() -> None:
    async with serving(server_dev_mode=True, enable_tokenizer_info_endpoint=True) as s:
        assert (await s.get("/openapi.json")).json == DOCUMENT
        page = await s.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert b"http" not in page.body  # nothing from elsewhere
        assert b"top_logprobs" in page.body
