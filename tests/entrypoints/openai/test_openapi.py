from __future__ import annotations

from octavo.entrypoints.openai.openapi import openapi_document
from octavo.entrypoints.openai.protocol import ChatCompletionRequest
from tests.entrypoints.openai.harness import serving


def test_document() -> None:
    document = openapi_document()
    schema = document["components"]["schemas"]["ChatCompletionRequest"]
    assert set(schema["properties"]) == set(ChatCompletionRequest.__struct_fields__)
    assert schema["required"] == ["messages"]


async def test_pages() -> None:
    async with serving() as s:
        document = (await s.get("/openapi.json")).json
        known = {"/health", "/version", "/metrics", "/v1/models", "/tokenize", "/detokenize"}
        assert set(document["paths"]) == known | {"/v1/completions", "/v1/chat/completions"}
        page = await s.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert b"http" not in page.body  # nothing from elsewhere
        assert b"top_logprobs" in page.body
