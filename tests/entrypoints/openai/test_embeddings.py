from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI

from tests.engine.fakes import HIDDEN_SIZE
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import MODEL, close, eventually, request_bytes, serving


def expected(ids: list[int]) -> np.ndarray:
    vector = np.bincount(np.array(ids) % HIDDEN_SIZE, minlength=HIDDEN_SIZE).astype(np.float32)
    return vector / np.linalg.norm(vector)


async def test_forms_of_input() -> None:
    """Text, ids, and lists of them; order and index are kept; ids are the text's."""
    forms: list[tuple[Any, list[str]]] = [
        ("hello", ["hello"]),
        (["hello", "a", "hello you"], ["hello", "a", "hello you"]),
        (list(b"hello"), ["hello"]),
        ([list(b"a"), list(b"hello")], ["a", "hello"]),
    ]
    async with serving() as s:
        for given, texts in forms:
            reply = await s.post("/v1/embeddings", {"model": MODEL, "input": given})
            body = reply.json
            assert body["object"] == "list"
            assert [d["index"] for d in body["data"]] == list(range(len(texts)))
            for data, text in zip(body["data"], texts):
                assert data["object"] == "embedding"
                np.testing.assert_allclose(data["embedding"], expected(list(text.encode())))
            num_tokens = sum(map(len, texts))
            assert body["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


async def test_options() -> None:
    async with serving() as s:
        floats = (await s.post("/v1/embeddings", {"input": "hello"})).json["data"][0]["embedding"]
        packed = await s.post("/v1/embeddings", {"input": "hello", "encoding_format": "base64"})
        data = base64.b64decode(packed.json["data"][0]["embedding"])
        assert np.frombuffer(data, dtype="<f4").tolist() == floats
        short = await s.post("/v1/embeddings", {"input": "hello", "dimensions": 6})
        vector = short.json["data"][0]["embedding"]
        assert len(vector) == 6
        assert abs(np.linalg.norm(vector) - 1) < 1e-6
        raw = await s.post("/v1/embeddings", {"input": "hello", "normalize": False})
        assert sum(raw.json["data"][0]["embedding"]) == len("hello")
        named = await s.post("/v1/embeddings", {"input": "a", "request_id": "mine"})
        assert named.json["id"] == "embd-mine"
        pooled = (await s.post("/pooling", {"input": ["hello"], "task": "embed"})).json
        assert pooled["data"] == [{"object": "pooling", "index": 0, "data": floats}]


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 2}, "lo"),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, "he"),
        ({"truncate_prompt_tokens": 99}, "hello"),
        ({"truncate_prompt_tokens": -1}, "ello"),
    ],
)
async def test_truncation(fields: dict[str, Any], kept: str) -> None:
    """Of every text; -1 keeps as much as the model takes, which is 4 tokens here."""
    async with serving(FakeEngine(max_model_len=4 if kept == "ello" else 24)) as s:
        body = (await s.post("/v1/embeddings", {"input": ["hello", "a"], **fields})).json
        for data, text in zip(body["data"], (kept, "a")):
            np.testing.assert_allclose(data["embedding"], expected(list(text.encode())))
        assert body["usage"]["prompt_tokens"] == len(kept) + 1
        scored = await s.post("/score", {"text_1": "hello", "text_2": kept, **fields})
        assert scored.json["data"][0]["score"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "either input or messages"),
        ({"input": ""}, "input", "empty text"),
        ({"input": []}, "input", "must be a string"),
        ({"input": ["a", ""]}, "input", "empty text"),
        ({"input": [[]]}, "input", "empty text"),
        ({"input": ["a", 1]}, "input", "must be a string"),
        ({"input": 5}, "input", "must be a string"),
        ({"input": [99999]}, "input", "token id 99999"),
        ({"input": "x" * 5000}, "input", "5000"),
        ({"input": ["a"] * 2049}, "input", "at most 2048"),
        ({"input": "a", "dimensions": 0}, "dimensions", "dimensions=0 must be in 1"),
        ({"input": "a", "dimensions": 9}, "dimensions", "1…8, the model's hidden size"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "Invalid enum"),
        ({"input": "a", "pooling_type": "ALL"}, "pooling_type", "Invalid enum"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
        ({"input": "a", "truncation_side": "left"}, "truncation_side", "needs truncate_prompt"),
        ({"input": "a", "truncation_side": "up"}, "truncation_side", "Invalid enum"),
        ({"input": "a", "priority": 3}, "priority", "no effect"),
        ({"input": "a", "request_id": "ä"}, "request_id", "must be"),
        ({"input": "a", "inputs": "b"}, "inputs", "did you mean 'input'"),
    ],
)
async def test_wrong_requests(body: dict[str, Any], param: str, message: str) -> None:
    async with serving() as s:
        reply = await s.post("/v1/embeddings", body)
        assert (reply.status, reply.error["param"]) == (400, param), reply.body
        assert message in reply.error["message"]
        reply = await s.post("/pooling", {"input": "a", "task": "token_embed"})
        assert (reply.status, reply.error["param"]) == (400, "task")


async def test_a_prompt_as_long_as_the_model() -> None:
    async with serving(FakeEngine(max_model_len=64)) as s:
        assert (await s.post("/v1/embeddings", {"input": "x" * 64})).status == 200
        reply = await s.post("/v1/embeddings", {"input": ["a", "x" * 65]})
        assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")


async def test_a_text_that_fails_fails_the_request() -> None:
    async with serving() as s:
        reply = await s.post("/v1/embeddings", {"input": ["a", "FAIL:"]})
        assert (reply.status, reply.error["code"]) == (500, "request_failed")


async def test_a_request_that_the_server_aborts() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    async with serving(engine) as s:
        task = asyncio.ensure_future(s.post("/v1/embeddings", {"input": ["a", "b"]}))
        await eventually(lambda: len(engine._queues) == 2)
        engine.abort_all()
        reply = await task
        assert (reply.status, reply.error["code"]) == (503, "aborted")
        engine.gate.set()


async def test_a_client_that_leaves() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    async with serving(engine) as s:
        _, writer = await s.connect()
        writer.write(request_bytes("POST", "/v1/embeddings", {"input": ["a"] * 50}, {}))
        await eventually(lambda: s.server.admission.num_reqs == 50)
        await close(writer)
        await eventually(lambda: engine.is_idle)
        engine.gate.set()


async def test_the_official_client() -> None:
    """Unmodified: it asks for base64 by itself."""
    async with (
        serving(api_key=["k"]) as s,
        AsyncOpenAI(base_url=s.url + "/v1", api_key="k") as client,
    ):
        answer = await client.embeddings.create(model=MODEL, input=["hello", "you"])
        assert [d.index for d in answer.data] == [0, 1]
        np.testing.assert_allclose(answer.data[0].embedding, expected(list(b"hello")), rtol=1e-6)
        assert answer.usage.total_tokens == 8
        answer = await client.embeddings.create(
            model=MODEL, input="hello", encoding_format="float", dimensions=3, user="me"
        )
        assert len(answer.data[0].embedding) == 3


async def test_a_chat() -> None:
    """The vector of the tokens that the template makes of it."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    async with serving() as s:
        for fields in (
            {},
            {"add_generation_prompt": True},
            {"continue_final_message": True},
            {"add_special_tokens": True},
            {"chat_template_kwargs": {"shout": True}},
        ):
            body = {"messages": messages, **fields}
            asked = {"add_generation_prompt": False, **body}
            tokens = (await s.post("/tokenize", asked)).json["tokens"]
            for path, name in (("/v1/embeddings", "embedding"), ("/pooling", "data")):
                reply = (await s.post(path, body)).json
                np.testing.assert_array_equal(reply["data"][0][name], expected(tokens))
                assert reply["usage"]["prompt_tokens"] == len(tokens)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "input"),
        ({"input": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"input": "a", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "a" * 5000}]}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}], "chat_template": "x"}, "chat_template"),
    ],
    ids=str,
)
async def test_wrong_chats(fields: dict[str, Any], param: str) -> None:
    async with serving() as s:
        reply = await s.post("/v1/embeddings", fields)
        assert (reply.status, reply.error["param"]) == (400, param), reply.body
