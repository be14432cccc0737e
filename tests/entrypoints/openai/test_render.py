"""What is rendered and then generated is what would have been answered at once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.entrypoints.openai.generate import SamplingFields
from octavo.entrypoints.openai.keys import KeyRing
from octavo.entrypoints.openai.sampling import SAMPLING_FIELDS, sampling_fields, sampling_params
from tests.e2e.lab import write_tiny
from tests.entrypoints.openai.harness import MODEL, Reply, serving
from tests.entrypoints.openai.live import Live, live

PROMPT = list(range(60, 100))
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
GENERATE = "/inference/v1/generate"
USER = [{"role": "user", "content": "Hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "boolean"}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(str(write_tiny(tmp_path_factory.mktemp("tiny")))) as server:
        yield server


def assert_same(server: Live, path: str, body: dict[str, Any]) -> None:
    """Generated from what was rendered: the ids, ends and log probabilities of the answer."""
    reply = server.post(path, {**body, "return_token_ids": True})
    assert reply.status == 200, reply.body
    rendered = server.post(f"{path}/render", body)
    assert rendered.status == 200, rendered.body
    requests = rendered.json if path == COMPLETIONS else [rendered.json]
    answers = [server.post(GENERATE, request) for request in requests]
    assert [a.status for a in answers] == [200] * len(answers), [a.body for a in answers]
    choices = [choice for answer in answers for choice in answer.json["choices"]]
    expected = reply.json["choices"]
    for choice, other in zip(choices, expected, strict=True):
        for name in ("token_ids", "stop_reason"):
            assert choice[name] == other[name]
        ends = {choice["finish_reason"], other["finish_reason"]}
        assert len(ends) == 1 or ends == {"stop", "tool_calls"}
        if choice["logprobs"] is not None:
            values = [entry["logprob"] for entry in choice["logprobs"]["content"]]
            theirs = other["logprobs"]
            assert values == (
                theirs["token_logprobs"]
                if path == COMPLETIONS
                else [entry["logprob"] for entry in theirs["content"]]
            )
    used = [answer.json["usage"] for answer in answers]
    for name in ("prompt_tokens", "completion_tokens"):
        assert sum(usage[name] for usage in used) == reply.json["usage"][name]
    assert_derendered(server, path, {**body, "return_token_ids": True}, answers, reply.json)


def assert_derendered(
    server: Live, path: str, body: dict[str, Any], answers: list[Reply], direct: dict[str, Any]
) -> None:
    """From what was generated comes the direct answer again."""
    made = [answer.json for answer in answers]
    lengths = [answer["usage"]["prompt_tokens"] for answer in made]
    reply = server.post(
        f"{path}/derender",
        {"completion_request": body, "generate_responses": made, "prompt_tokens": lengths}
        if path == COMPLETIONS
        else {"chat_request": body, "generate_response": made[0], "prompt_tokens": lengths[0]},
    )
    assert reply.status == 200, reply.body
    assert reply.json["id"] == made[0]["request_id"]
    assert without_ids(reply.json) == without_ids(direct)


def without_ids(answer: dict[str, Any]) -> dict[str, Any]:
    """What two answers to one request have in common."""
    answer = json.loads(re.sub(r"chatcmpl-tool-\w+", "", json.dumps(answer)))
    for name in ("id", "created"):
        del answer[name]
    del answer["usage"]["prompt_tokens_details"]
    return answer


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": "text"},
        {"prompt": ["text", "another"], "n": 2, "seed": 3, "temperature": 1},
        {"prompt": [[65, 66], [67]], "max_tokens": 3, "request_id": "mine"},
        {"stop": ["Z", "e"], "max_tokens": 200},
        {"stop_regex": "[A-Z]", "max_tokens": 200, "include_stop_str_in_output": True},
        {"stop_token_ids": [*range(65, 91)], "max_tokens": 200, "min_tokens": 5},
        {"n": 2, "best_of": 4, "seed": 5, "temperature": 1, "max_tokens": 6},
        {"seed": 7, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
        {"logit_bias": {"70": 5}, "presence_penalty": 1, "repetition_penalty": 1.2},
        {"allowed_token_ids": [70, 71, 72], "bad_words": ["H"], "frequency_penalty": 0.5},
        {"logprobs": 3, "logprob_token_ids": [65]},
        {"prompt_logprobs": 2, "stop": "x", "skip_special_tokens": False},
        {"structured_outputs": {"choice": ["red", "green"]}},
        {"response_format": {"type": "json_object"}, "max_tokens": 30},
        {"truncate_prompt_tokens": 7, "truncation_side": "right"},
        {"repetition_detection": {"max_pattern_size": 4, "min_count": 3}, "max_tokens": 200},
        {"use_beam_search": True, "n": 3, "length_penalty": 0.5, "early_stopping": True},
        {"use_beam_search": True, "n": 2, "max_tokens": 5, "ignore_eos": True, "logprobs": 1},
        {"cache_salt": "salt", "user": "me", "echo": True, "return_prompt_text": True},
    ],
    ids=str,
)
def test_completions(server: Live, fields: dict[str, Any]) -> None:
    assert_same(server, COMPLETIONS, {"prompt": PROMPT, "temperature": 0, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 8},
        {"max_completion_tokens": 5, "stop": "e", "logprobs": True, "top_logprobs": 2},
        {"max_tokens": 60, "tools": [TOOL], "tool_choice": "required"},
        {
            "max_tokens": 60,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        },
        {"max_tokens": 40, "response_format": {"type": "json_object"}},
        {"seed": 1, "temperature": 1, "add_generation_prompt": False},  # as many as fit
    ],
    ids=str,
)
def test_chats(server: Live, fields: dict[str, Any]) -> None:
    assert_same(server, CHAT, {"messages": USER, "temperature": 0, **fields})


FUNCTION = TOOL["function"]


@pytest.mark.parametrize(
    ("path", "body", "chat"),
    [
        (
            MESSAGES,
            {"max_tokens": 9, "stop_sequences": ["e"], "system": "S", "messages": USER},
            {
                "max_tokens": 9,
                "stop": ["e"],
                "messages": [{"role": "system", "content": "S"}, *USER],
            },
        ),
        (
            MESSAGES,
            {
                "max_tokens": 9,
                "messages": USER,
                "tools": [{"name": "f", "input_schema": FUNCTION["parameters"]}],
                "tool_choice": {"type": "any"},
            },
            {"max_tokens": 9, "messages": USER, "tools": [TOOL], "tool_choice": "required"},
        ),
        (
            RESPONSES,
            {"input": "Hi", "max_output_tokens": 5, "temperature": 0.5, "stream": True},
            {"messages": USER, "max_tokens": 5, "temperature": 0.5, "stream": True},
        ),
        (
            RESPONSES,
            {"input": "Hi", "text": {"format": {"type": "json_object"}}},
            {"messages": USER, "response_format": {"type": "json_object"}},
        ),
    ],
    ids=str,
)
async def test_other_apis(path: str, body: dict[str, Any], chat: dict[str, Any]) -> None:
    """They ask of the engine what their requests as chats ask."""
    async with serving() as s:
        model = {"model": MODEL} if path == MESSAGES else {}
        rendered = await s.post(f"{path}/render", {**body, **model})
        assert rendered.status == 200, rendered.body
        expected = (await s.post(f"{CHAT}/render", chat)).json
        assert {**rendered.json, "request_id": ""} == {**expected, "request_id": ""}


async def test_a_conversation_that_the_server_keeps() -> None:
    async with serving() as s:
        first = (await s.post(RESPONSES, {"input": "SAY:one"})).json
        body = {"input": "Hi", "previous_response_id": first["id"]}
        rendered = (await s.post(f"{RESPONSES}/render", body)).json
        turns = [
            {"role": "user", "content": "SAY:one"},
            {"role": "assistant", "content": "one"},
            *USER,
        ]
        tokens = (await s.post("/tokenize", {"messages": turns})).json["tokens"]
        assert rendered["token_ids"] == tokens
        body = {"input": "Hi", "previous_response_id": "resp_unknown"}
        assert (await s.post(f"{RESPONSES}/render", body)).status == 404


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, MESSAGES, RESPONSES])
def test_grammars_that_do_not_compile(server: Live, path: str) -> None:
    """Found before anything is rendered, and named as that API calls them."""
    schema = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}
    openai = {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    kind = {"type": "json_schema", "schema": schema}
    body, param = {
        COMPLETIONS: ({"prompt": "x", **openai}, "response_format"),
        CHAT: ({"messages": USER, **openai}, "response_format"),
        MESSAGES: (
            {"messages": USER, "max_tokens": 5, "output_config": {"format": kind}},
            None,  # Anthropic's errors name none
        ),
        RESPONSES: ({"input": "x", "text": {"format": kind}}, "text"),
    }[path]
    if path == MESSAGES:
        body["model"] = server.get("/v1/models").json["data"][0]["id"]
    reply = server.post(f"{path}/render", body)
    assert reply.status == 400, reply.body
    assert "the grammar cannot be used" in reply.json["error"]["message"]
    assert reply.json["error"].get("param") == param


@pytest.mark.parametrize("path", [COMPLETIONS, f"{COMPLETIONS}/render"])
def test_a_grammar_that_contradicts_allowed_token_ids(server: Live, path: str) -> None:
    """Found before anything is admitted; the error names both."""
    before = server.metric("prompt_tokens_total")
    for fields in (
        {"structured_outputs": {"regex": "a+"}},
        {"response_format": {"type": "json_object"}, "stream": True},
    ):
        body = {"prompt": "x", "allowed_token_ids": [66, 67], **fields}
        reply = server.post(path, body)
        assert reply.status == 400, reply.body
        assert "the grammar and allowed_token_ids contradict" in reply.error["message"]
        assert reply.error["param"] in fields
    assert server.metric("prompt_tokens_total") == before


async def test_what_is_rendered() -> None:
    async with serving() as s:
        body = {"messages": USER, "seed": 4, "stream": True, "request_id": "mine", "stop": "x"}
        body["stream_options"] = {"include_usage": True}
        rendered = (await s.post(f"{CHAT}/render", body)).json
        tokens = rendered["token_ids"]
        assert tokens == (await s.post("/tokenize", {"messages": USER})).json["tokens"]
        assert rendered == {
            "request_id": "mine",
            "model": MODEL,
            "token_ids": tokens,
            "sampling_params": {
                "temperature": 1.0,
                "top_p": 1.0,
                "top_k": 0,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "seed": 4,
                "stop": ["x"],
                "max_tokens": 4096 - len(tokens),
            },
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        [first, second] = (await s.post(f"{COMPLETIONS}/render", {"prompt": ["a", "b"]})).json
        assert first["sampling_params"]["max_tokens"] == 16
        assert (first["token_ids"], second["token_ids"]) == ([97], [98])
        assert first["request_id"].removesuffix("-0") == second["request_id"].removesuffix("-1")


async def test_rendering_begins_nothing() -> None:
    keys = KeyRing(["secret"])
    async with serving(keys=keys) as s:
        (key,) = keys
        for path, body in (
            (CHAT, {"messages": USER}),
            (COMPLETIONS, {"prompt": ["a", "b"], "n": 2}),
        ):
            reply = await s.post(f"{path}/render", body, authorization="Bearer secret")
            assert reply.status == 200
        assert (key.account.prompt_tokens, key.account.generation_tokens) == (0, 0)
        assert s.server.admission.num_reqs == 0
        assert s.engine.stats().num_steps == 0


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"max_tokens": 0, "echo": True}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": 10**6}, "max_tokens"),
        (COMPLETIONS, {"echo": True, "logprobs": 1, "stream": True}, "echo"),
        (COMPLETIONS, {"stream": True, "resumable": True}, "resumable"),
        (COMPLETIONS, {"prompt": ["a"] * 11, "request_id": "x" * 126}, "request_id"),
        (COMPLETIONS, {"prompt": [99_999]}, "prompt"),
        (COMPLETIONS, {"temperature": -1}, "temperature"),
        (COMPLETIONS, {"suffix": "x"}, "suffix"),
        (COMPLETIONS, {"stop_regex": "(a"}, "stop_regex"),
        (CHAT, {"stop": "x", "tools": [TOOL], "tool_choice": "required"}, "stop"),
        (CHAT, {"stop_regex": "x", "tools": [TOOL], "tool_choice": "required"}, "stop_regex"),
        (CHAT, {"tool_choice": "required"}, "tool_choice"),
        (CHAT, {"messages": [{"role": "user", "content": "a" * 9000}]}, "messages"),
        (CHAT, {"model": "other"}, "model"),
        (RESPONSES, {"background": True}, "background"),
    ],
    ids=str,
)
async def test_what_cannot_be_rendered(path: str, fields: dict[str, Any], param: str) -> None:
    async with serving() as s:
        bases: dict[str, Any] = {CHAT: {"messages": USER}, RESPONSES: {"input": "a"}}
        reply = await s.post(f"{path}/render", bases.get(path, {"prompt": "a"}) | fields)
        assert (reply.status, reply.error["param"]) == (404 if param == "model" else 400, param)


# Parameters that a request has no field for, or that other fields of it say.
NOT_SAID = {
    "detokenize": "stop and stop_regex",
    "output_kind": "stream",
    "report_progress": "stream_options",
    "shown_special_token_ids": "only of texts",
    "extra_args": "vllm_xargs",
}
VALUES: dict[str, Any] = {
    **dict.fromkeys(("n", "top_k", "seed", "max_tokens", "stream_interval"), 2),
    **dict.fromkeys(("min_tokens", "logprobs", "prompt_logprobs", "thinking_token_budget"), 1),
    **dict.fromkeys(("max_time_ms", "ttft_deadline_ms"), 1000),
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), 0.5),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), 0.5),
    **{key: [7] for key in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids")},
    **dict.fromkeys(("ignore_eos", "include_stop_str_in_output"), True),
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "stop": ["x"],
    "stop_regex": ["y"],
    "bad_words": ["z"],
    "logit_bias": {"5": 1.0},
    "best_of": 3,
    "structured_outputs": {"regex": "a+"},
    "repetition_detection": {"max_pattern_size": 4, "min_count": 3},
    "vllm_xargs": {"a": 1},
}


def test_every_field_is_said_again() -> None:
    assert set(VALUES) == SAMPLING_FIELDS
    fields = msgspec.convert(VALUES, SamplingFields)
    params = parameters(fields, SamplingParams())
    said = sampling_fields(params)
    assert set(said) == set(VALUES)
    other_model = SamplingParams(temperature=0.1, top_k=5, repetition_penalty=1.5)
    assert parameters(msgspec.convert(said, SamplingFields), other_model) == params
    unsaid = {
        name
        for name in SamplingParams.__struct_fields__
        if name not in said and getattr(params, name) != getattr(SamplingParams(), name)
    }
    assert unsaid <= set(NOT_SAID)


def test_defaults_of_the_model_are_said() -> None:
    params = parameters(SamplingFields(), SamplingParams(temperature=0.1, top_k=5))
    assert sampling_fields(params)["temperature"] == 0.1
    again = msgspec.convert(sampling_fields(params), SamplingFields)
    assert parameters(again, SamplingParams(temperature=0.7, min_p=0.5)) == params


def parameters(fields: SamplingFields, defaults: SamplingParams) -> SamplingParams:
    params = sampling_params(
        fields,
        defaults,
        max_tokens=fields.max_tokens,
        logprobs=fields.logprobs,
        prompt_logprobs=None,
    )
    assert params.output_kind is RequestOutputKind.FINAL_ONLY
    return params
