"""Every field of the requests: honoured, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.entrypoints.openai import protocol
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import Running, serving

TABLES = {
    "chat": (protocol.ChatCompletionRequest, protocol.CHAT_UNSUPPORTED),
    "completion": (protocol.CompletionRequest, protocol.COMPLETION_UNSUPPORTED),
}
# A value of each unsupported field that asks for something.
MEANS_SOMETHING: dict[str, Any] = {
    "service_tier": "flex",
    "routed_experts_prompt_start": 3,
}
# OpenAI's and vLLM's fields, by their documentation.
KNOWN = {
    "chat": "messages model frequency_penalty presence_penalty logit_bias logprobs top_logprobs "
    "max_tokens max_completion_tokens n response_format seed stop stream stream_options "
    "temperature top_p tools tool_choice parallel_tool_calls reasoning_effort user audio metadata "
    "modalities prediction prompt_cache_key safety_identifier service_tier store verbosity "
    "web_search_options function_call functions thinking_token_budget include_reasoning "
    "use_beam_search length_penalty top_k min_p repetition_penalty watermarking stop_token_ids "
    "include_stop_str_in_output ignore_eos min_tokens skip_special_tokens "
    "spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs "
    "logprob_token_ids allowed_token_ids bad_words echo add_generation_prompt "
    "continue_final_message add_special_tokens documents chat_template chat_template_kwargs "
    "media_io_kwargs mm_processor_kwargs structured_outputs priority request_id session_id "
    "return_tokens_as_token_ids return_token_ids return_token_offsets return_prompt_text "
    "routed_experts_prompt_start mm_payload cache_salt kv_transfer_params ec_transfer_params "
    "vllm_xargs repetition_detection stream_interval",
    "completion": "model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n "
    "presence_penalty seed stop stream stream_options suffix temperature top_p user "
    "prompt_embeds use_beam_search top_k min_p repetition_penalty length_penalty stop_token_ids "
    "include_stop_str_in_output ignore_eos min_tokens skip_special_tokens "
    "spaces_between_special_tokens truncate_prompt_tokens allowed_token_ids prompt_logprobs "
    "add_special_tokens response_format structured_outputs priority request_id cache_salt "
    "return_tokens_as_token_ids return_token_ids kv_transfer_params vllm_xargs",
}


@pytest.mark.parametrize("route", KNOWN)
def test_all_known_fields_are_in_the_tables(route: str) -> None:
    request, unsupported = TABLES[route]
    fields = set(request.__struct_fields__)
    assert not set(KNOWN[route].split()) - fields - set(unsupported)
    assert not fields & set(unsupported)


async def _send(s: Running, route: str, fields: dict[str, Any]) -> Any:
    return await (s.chat if route == "chat" else s.completion)(**{"max_tokens": 1, **fields})


@pytest.mark.parametrize("route", TABLES)
async def test_unsupported_fields(route: str) -> None:
    _, unsupported = TABLES[route]
    async with serving() as s:
        for name, neutral in unsupported.items():
            value = MEANS_SOMETHING.get(name, True)
            for given, status in ((value, 400), (None, 200), *((n, 200) for n in neutral)):
                reply = await _send(s, route, {name: given})
                assert reply.status == status, (name, given)
                if status == 400:
                    assert reply.error["param"] == name
                    assert name in reply.error["message"]


@pytest.mark.parametrize("route", TABLES)
async def test_null_is_absent(route: str) -> None:
    request, _ = TABLES[route]
    fields = [f for f in request.__struct_fields__ if f not in ("messages", "prompt")]
    async with serving() as s:
        reply = await _send(s, route, dict.fromkeys(fields))
        assert reply.status == 200, reply.body


async def test_unknown_fields() -> None:
    async with serving() as s:
        reply = await s.completion(max_token=5)
        assert reply.status == 400
        assert reply.error["param"] == "max_token"
        assert "'max_tokens'" in reply.error["message"]
        assert (await s.chat(tempreature=1)).error["param"] == "tempreature"
        assert (await s.chat(**{"x" * 10_000: 1})).status == 400
        assert (await s.chat(nonsense=None)).status == 200
        assert (await s.chat(stream=True, stream_options={"include_use": True})).status == 400


async def test_wrong_types() -> None:
    wrong: dict[str, list[Any]] = {
        "model": [5, ["fake"]],
        "stream": ["yes", 1],
        "stream_options": [True, []],
        "n": ["2", 1.5, True, [1]],
        "temperature": ["1", True, [1]],
        "stop": [5, [5], {"a": 1}],
        "stop_token_ids": [5, ["a"], [1.5]],
        "seed": ["x", 1.5],
        "logit_bias": [[1], {"5": "x"}, "x"],
        "ignore_eos": [1, "true"],
        "priority": ["x", 1.5],
        "cache_salt": [5, "", "x" * 200],
        "request_id": [5, "", "a b", "x" * 200],
        "user": [5],
        "metadata": [5, {"a": 1}],
    }
    async with serving() as s:
        for name, values in wrong.items():
            for value in values:
                for reply in (
                    await s.completion(**{name: value}),
                    await s.chat(**{name: value, "stream": value if name == "stream" else True}),
                ):
                    assert reply.status == 400, (name, value)
                    assert reply.error["param"] == name, (name, value, reply.body)


async def test_stream_options_need_a_stream() -> None:
    async with serving() as s:
        reply = await s.chat(stream_options={"include_usage": True})
        assert reply.error["param"] == "stream_options"
        assert (await s.chat(stream_options={"include_usage": None}, stream=True)).status == 200


async def test_fields_that_do_not_go_together() -> None:
    async with serving() as s:
        reply = await s.chat(prompt_logprobs=1, stream=True)
        assert reply.error["param"] == "prompt_logprobs"
        reply = await s.completion(logprob_token_ids=[5])
        assert reply.error["param"] == "logprob_token_ids"
        assert (await s.completion(logprob_token_ids=[5], logprobs=0)).status == 200
        assert (await s.completion(vllm_xargs={"a": 1})).error["param"] == "vllm_xargs"
        for n in (0, 129):
            assert (await s.completion(use_beam_search=True, n=n)).error["param"] == "n"
        for name, value in (("length_penalty", 1.0), ("early_stopping", True)):
            assert (await s.completion(**{name: value})).error["param"] == name


async def test_priority_and_salt() -> None:
    seen: list[Any] = []

    class Engine(FakeEngine):
        def run(self, request, request_id, **options):  # type: ignore[no-untyped-def]
            seen.append((request_id, request))
            return super().run(request, request_id, **options)

    async with serving(Engine()) as s:
        reply = await s.completion(priority=1)
        assert reply.error["param"] == "priority"
        assert "scheduling-policy" in reply.error["message"]
        assert (await s.completion(priority=0)).status == 200
    async with serving(Engine(scheduling_policy="priority")) as s:
        reply = await s.completion(priority=-3, cache_salt="a/b", request_id="mine")
        assert reply.json["id"] == "cmpl-mine"
        request_id, request = seen[-1]
        assert request_id.startswith("cmpl-mine-")
        assert (request.priority, request.cache_salt) == (-3, "a/b")
        assert (await s.completion(priority=2**40)).error["param"] == "priority"
