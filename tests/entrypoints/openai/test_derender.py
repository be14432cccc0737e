"""What was rendered and generated becomes an answer, or is refused; that it is the direct answer is
tested with `render`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from octavo.entrypoints.openai.keys import KeyRing
from tests.entrypoints.openai.harness import MODEL, serving

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ANSWER = {"request_id": "r", "model": MODEL}
CHOICE = {"index": 0, "token_ids": [104, 105], "finish_reason": "stop"}
PROMPT_LOGPROB = {"logprob": -1.0, "rank": 1, "decoded_token": "h"}
ENTRY = {"token": "token_id:104", "logprob": -1.0, "bytes": [104], "top_logprobs": []}


def answer(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**ANSWER, "choices": [*choices], **fields}


async def test_derendering_begins_nothing() -> None:
    keys = KeyRing(["secret"])
    async with serving(keys=keys) as s:
        (key,) = keys
        for path, body in (
            (CHAT, {"chat_request": {"messages": USER}, "generate_response": answer(CHOICE)}),
            (
                COMPLETIONS,
                {"completion_request": {"prompt": "a"}, "generate_responses": [answer(CHOICE)]},
            ),
        ):
            reply = await s.post(f"{path}/derender", body, authorization="Bearer secret")
            assert reply.status == 200, reply.body
            [choice] = reply.json["choices"]
            assert choice.get("text", choice.get("message", {}).get("content")) == "h"
        assert (key.account.prompt_tokens, key.account.generation_tokens) == (0, 0)
        assert s.server.admission.num_reqs == 0
        assert s.engine.stats().num_steps == 0


async def test_tool_calls_and_reasoning_are_taken_apart() -> None:
    text = '<think>hm</think><tool_call>{"name": "f", "arguments": {"x": true}}</tool_call>'
    async with serving(tool_call_parser="hermes", reasoning_parser="qwen3") as s:
        choice = {**CHOICE, "token_ids": [*text.encode(), 256]}
        body = {
            "chat_request": {"messages": USER, "tools": [TOOL], "stream": True},
            "generate_response": answer(choice),
        }
        [made] = (await s.post(f"{CHAT}/derender", body)).json["choices"]
        assert made["message"]["reasoning"] == "hm"
        [call] = made["message"]["tool_calls"]
        assert call["function"] == {"name": "f", "arguments": '{"x": true}'}
        assert made["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("request_fields", "given", "message"),
    [
        ({}, answer(), "choices of the indices \\[\\]"),
        ({}, answer(CHOICE, CHOICE), "choices of the indices"),
        ({}, answer({**CHOICE, "index": 1}), "choices of the indices"),
        ({"n": 2}, answer(CHOICE, CHOICE), "choices of the indices"),
        ({}, answer({**CHOICE, "token_ids": [1] * 4097}), "4097 tokens, more than"),
        ({}, answer({**CHOICE, "token_ids": [10**12]}), "holds 1000000000000"),
        ({}, answer({**CHOICE, "token_ids": [-1]}), "holds -1"),
        ({}, answer({**CHOICE, "finish_reason": "abort"}), "finish_reason='abort'"),
        (
            {"n": 65},
            answer(*({**CHOICE, "index": i, "token_ids": [1] * 4096} for i in range(65))),
            "has 266240 tokens; at most 262144: derender fewer",
        ),
        ({"logprobs": True}, answer(CHOICE), "logprobs of other tokens"),
        (
            {"logprobs": True},
            answer({**CHOICE, "logprobs": {"content": [ENTRY]}}),
            "logprobs of other tokens",
        ),
        (
            {"logprobs": True},
            answer({**CHOICE, "logprobs": {"content": [{**ENTRY, "token": "h"}]}}),
            "'h' is no token",
        ),
        ({"zzz": 1}, answer(CHOICE), "unknown field 'zzz'"),
        ({"messages": []}, answer(CHOICE), "messages"),
        ({"max_tokens": 10**6}, answer(CHOICE), "max_model_len"),
        (
            {},
            answer(CHOICE, prompt_logprobs=[{"x": PROMPT_LOGPROB}]),
            "other tokens than the prompt's",
        ),
        ({}, answer(CHOICE, prompt_logprobs=[]), "other tokens than the prompt's"),
        ({}, answer(CHOICE, prompt_logprobs=[None] * 13), "other tokens than the prompt's"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_what_cannot_be_derendered(
    request_fields: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    async with serving() as s:
        body = {"chat_request": {"messages": USER, **request_fields}, "generate_response": given}
        reply = await s.post(f"{CHAT}/derender", body)
        assert reply.status == 400, reply.body
        assert re.search(message, reply.error["message"])


async def test_answers_of_another_request() -> None:
    async with serving() as s:
        body = {
            "completion_request": {"prompt": ["a", "b"]},
            "generate_responses": [answer(CHOICE)],
        }
        reply = await s.post(f"{COMPLETIONS}/derender", body)
        assert (reply.status, reply.error["param"]) == (400, "generate_responses")
        body["generate_responses"] *= 2
        reply = await s.post(f"{COMPLETIONS}/derender", {**body, "prompt_tokens": [1, 2]})
        assert (reply.status, reply.error["param"]) == (400, "prompt_tokens")
        assert (await s.post(f"{COMPLETIONS}/derender", {**body, "stream": True})).status == 400
        assert (await s.post(f"{COMPLETIONS}/derender", {**body, "model": "x"})).status == 404
