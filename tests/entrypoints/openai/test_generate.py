from __future__ import annotations

from typing import Any

import pytest

from tests.entrypoints.openai.harness import MODEL, serving

PATH = "/inference/v1/generate"
PROMPT = list(b"SAY:hello")


async def test_tokens() -> None:
    async with serving() as s:
        reply = (await s.post(PATH, {"model": MODEL, "token_ids": PROMPT})).json
        [choice] = reply["choices"]
        assert bytes(choice["token_ids"][:-1]) == b"hello"
        assert choice["finish_reason"] == "stop"
        assert reply["usage"]["prompt_tokens"] == len(PROMPT)
        params = {"n": 2, "max_tokens": 3, "logprobs": 2}
        body = {"token_ids": PROMPT, "sampling_params": params, "request_id": "mine"}
        reply = (await s.post(PATH, body)).json
        assert reply["request_id"] == "gen-mine"
        assert [c["index"] for c in reply["choices"]] == [0, 1]
        for choice in reply["choices"]:
            assert choice["finish_reason"] == "length"
            content = choice["logprobs"]["content"]
            assert [t["token"] for t in content] == [f"token_id:{i}" for i in b"hel"]
            assert all(len(t["top_logprobs"]) == 2 for t in content)


async def test_stop_strings() -> None:
    async with serving() as s:
        for params, token_ids in (
            ({"stop": ["zz", "ell"]}, b"hell"),
            ({"stop_regex": "l+"}, b"hel"),
        ):
            body = {"token_ids": PROMPT, "sampling_params": params}
            [choice] = (await s.post(PATH, body)).json["choices"]
            assert bytes(choice["token_ids"]) == token_ids
            assert choice["finish_reason"] == "stop"
            assert choice["stop_reason"] in ("ell", "l+")
            events = (await s.post(PATH, {**body, "stream": True})).events
            assert bytes(i for e in events for c in e["choices"] for i in c["token_ids"]) == (
                token_ids
            )


async def test_stream() -> None:
    async with serving() as s:
        params = {"max_tokens": 4}
        body = {"token_ids": PROMPT, "sampling_params": params, "stream": True}
        body["stream_options"] = {"include_usage": True}
        *events, last = (await s.post(PATH, body)).events
        token_ids = [i for e in events for c in e["choices"] for i in c["token_ids"]]
        assert bytes(token_ids) == b"hell"
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "token_ids"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [99999]}, "token_ids"),
        ({"token_ids": "abc"}, "token_ids"),
        ({"token_ids": [1], "sampling_params": {"stop": ""}}, "stop"),
        ({"token_ids": [1], "sampling_params": {"best_of": 0}}, "best_of"),
        ({"token_ids": [1], "sampling_params": {"length_penalty": 1}}, "length_penalty"),
        ({"token_ids": [1], "sampling_params": {"echo": True}}, "sampling_params"),
        ({"token_ids": [1], "sampling_params": {"temperature": -1}}, "temperature"),
        ({"token_ids": [1], "sampling_params": {"temperature": "1"}}, "temperature"),
        ({"token_ids": [1], "sampling_params": {"stream": True}}, "sampling_params"),
        ({"token_ids": [1], "sampling_params": {"max_tokens": 0}}, "max_tokens"),
        ({"token_ids": [1], "sampling_params": {"logprobs": 21}}, "logprobs"),
        ({"token_ids": [1], "sampling_params": [1]}, "sampling_params"),
        ({"token_ids": [1], "features": {}}, "features"),
        ({"token_ids": [1], "stream_options": {}}, "stream_options"),
    ],
)
async def test_wrong_requests(body: dict[str, Any], param: str) -> None:
    async with serving() as s:
        reply = await s.post(PATH, body)
        assert (reply.status, reply.error["param"]) == (400, param), reply.body
