"""Anthropic's client, unmodified, against a server on a loopback port."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from octavo.entrypoints.anthropic.messages import UNPARSED
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.fake_tokenizer import FakeTokenizer
from tests.entrypoints.openai.harness import MODEL, Running, eventually, serving, strict_json

TOOLS: list[Any] = [
    {
        "name": "get_weather",
        "description": "The weather of a city",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
    {"name": "get_time", "input_schema": {"type": "object"}},
]


def hermes(name: str, **arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def client_of(s: Running, **options: Any) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=s.url, api_key="none", max_retries=0, **options)


def said(text: str, **fields: Any) -> dict[str, Any]:
    fields = {"model": MODEL, "max_tokens": 500, **fields}
    return {"messages": [{"role": "user", "content": "SAY:" + text}], **fields}


def without_ids(message: Any) -> dict[str, Any]:
    """A message but for the ids that differ each time, and what the prefix cache gave."""
    body: dict[str, Any] = message.model_dump(exclude={"id", "usage", "parsed_output"})
    for block in body["content"]:
        for name in ("id", "parsed_output"):
            block.pop(name, None)
    return body


async def both(client: AsyncAnthropic, body: dict[str, Any]) -> Any:
    """A whole message, which its stream must add up to."""
    whole = await client.messages.create(**body)
    async with client.messages.stream(**body) as stream:
        streamed = await stream.get_final_message()
    assert without_ids(streamed) == without_ids(whole)
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    return whole


async def test_text() -> None:
    async with serving() as s, client_of(s) as client:
        message = await both(client, said("Zoë says 你好 🌶"))
        assert [(b.type, b.text) for b in message.content] == [("text", "Zoë says 你好 🌶")]
        assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
        assert message.id.startswith("msg_")
        assert (message.model, message.role) == (MODEL, "assistant")
        message = await both(client, said("a long answer", max_tokens=3))
        assert (message.content[0].text, message.stop_reason) == ("a l", "max_tokens")
        message = await both(client, said("one END two", stop_sequences=["END", "two"]))
        assert message.content[0].text == "one "
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")


async def test_the_events_of_a_stream_and_their_order() -> None:
    text = f"Look: {hermes('get_time')}{hermes('get_weather', city='Zürich')}"
    async with serving(tool_call_parser="hermes") as s:
        reply = await s.post("/v1/messages", said(text, tools=TOOLS, stream=True))
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in reply.body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append(strict_json(data.removeprefix("data: ")))
        assert name == "event: " + events[-1]["type"]
    kinds = [e["type"].removeprefix("content_block_") for e in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    order = [k for i, k in enumerate(kinds[1:-2]) if k != "delta" or kinds[i] != "delta"]
    assert order == ["start", "delta", "stop"] * 3
    starts = [e for e in events if e["type"] == "content_block_start"]
    assert [e["index"] for e in starts] == [0, 1, 2]
    assert starts[0]["content_block"] == {"type": "text", "text": ""}
    assert starts[1]["content_block"]["input"] == {}
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["stop_reason"] is None
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


async def test_parallel_calls_and_their_results() -> None:
    text = f"Let me look.\n{hermes('get_weather', city='Paris')}\n{hermes('get_time')}"
    async with serving(FakeEngine(), tool_call_parser="hermes") as s, client_of(s) as client:
        message = await both(client, said(text, tools=TOOLS))
        assert [b.type for b in message.content] == ["text", "tool_use", "tool_use"]
        paris, time = message.content[1:]
        assert (paris.name, paris.input) == ("get_weather", {"city": "Paris"})
        assert (time.name, time.input) == ("get_time", {})
        assert paris.id.startswith("toolu_")
        assert paris.id != time.id
        assert message.stop_reason == "tool_use"
        one = await both(
            client,
            said(
                text, tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True}
            ),
        )
        assert len(one.content) == 2
        results = [
            {"type": "tool_result", "tool_use_id": paris.id, "content": "12 °C"},
            {"type": "tool_result", "tool_use_id": time.id, "content": "gone", "is_error": True},
            {"type": "text", "text": "SAY:done"},
        ]
        history: list[Any] = [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": results},
        ]
        await client.messages.create(model=MODEL, max_tokens=5, messages=history, tools=TOOLS)
    rendered, options = s.engine.rendered[-1]
    assert [m["role"] for m in rendered] == ["user", "assistant", "tool", "tool", "user"]
    calls = rendered[1]["tool_calls"]
    assert [(c["id"], c["function"]["name"]) for c in calls] == [
        (paris.id, "get_weather"),
        (time.id, "get_time"),
    ]
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Paris"}
    assert [m["content"] for m in rendered[2:]] == ["12 °C", "Error: gone", "SAY:done"]
    assert options["tools"][0]["function"]["parameters"] == TOOLS[0]["input_schema"]


async def test_forced_calls() -> None:
    listed = json.dumps([{"name": "get_time", "parameters": {}}])
    async with serving() as s, client_of(s) as client:
        message = await both(client, said(listed, tools=TOOLS, tool_choice={"type": "any"}))
        assert [(b.name, b.input) for b in message.content] == [("get_time", {})]
        choice = {"type": "tool", "name": "get_weather"}
        message = await both(client, said('{"city": "X"}', tools=TOOLS, tool_choice=choice))
        assert [(b.name, b.input) for b in message.content] == [("get_weather", {"city": "X"})]
        assert message.stop_reason == "tool_use"
        message = await both(client, said("free", tools=TOOLS, tool_choice={"type": "none"}))
        assert message.content[0].text == "free"
        broken = await client.messages.create(
            **said('{"city": "X"}', tools=TOOLS, tool_choice=choice, max_tokens=5)
        )
        assert broken.content[0].input == {UNPARSED: '{"cit'}
        assert broken.stop_reason == "max_tokens"


async def test_reasoning_is_a_thinking_block_where_it_is_asked_for() -> None:
    text = "<think>hmm, END?</think>The END is near"
    async with serving(reasoning_parser="qwen3") as s, client_of(s) as client:
        enabled = {"type": "enabled", "budget_tokens": 1024}
        message = await both(client, said(text, thinking=enabled, stop_sequences=["END"]))
        assert [b.type for b in message.content] == ["thinking", "text"]
        assert message.content[0].thinking == "hmm, END?"
        assert message.content[1].text == "The "
        for thinking in (None, {"type": "disabled"}, {**enabled, "display": "omitted"}):
            fields = {} if thinking is None else {"thinking": thinking}
            message = await both(client, said(text, **fields))
            assert [b.type for b in message.content] == ["text"]
        history: list[Any] = [
            {"role": "user", "content": "a"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "deep", "signature": ""},
                    {"type": "text", "text": "b"},
                ],
            },
            {"role": "user", "content": "SAY:c"},
        ]
        await client.messages.create(model=MODEL, max_tokens=5, messages=history)
        assert s.engine.rendered[-1][0][1] == {
            "role": "assistant",
            "content": "b",
            "reasoning_content": "deep",
        }
        switches = [o.get("enable_thinking") for _, o in s.engine.rendered]
    assert switches == [True] * 2 + [None] * 2 + [False] * 2 + [True] * 2 + [None]


async def test_systems_prefills_and_schemas() -> None:
    async with serving() as s, client_of(s) as client:
        for system in ("Be brief", [{"type": "text", "text": "Be brief", "cache_control": None}]):
            await client.messages.create(**said("a", system=system))
            assert s.engine.rendered[-1][0][0] == {"role": "system", "content": "Be brief"}
        messages: list[Any] = [
            {"role": "user", "content": "count"},
            {"role": "assistant", "content": "SAY:1, 2,"},
        ]
        message = await client.messages.create(model=MODEL, max_tokens=20, messages=messages)
        assert message.content[0].text == "1, 2,"
        assert s.engine.rendered[-1][1]["continue_final_message"] is True
        form = {"type": "json_schema", "schema": {"type": "object"}}
        message = await both(client, said('{"a": 1}', output_config={"format": form}))
        assert json.loads(message.content[0].text) == {"a": 1}


# What Claude Code sends: vllm#44000, mlx-vlm#1264, claude-code#21612, copilot-api#305.
CLAUDE_CODE: dict[str, Any] = {
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "cache_control": {"type": "ephemeral", "ttl": "1h"},
    "metadata": {"user_id": None},
}


async def test_claude_code_is_understood() -> None:
    parts = [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    messages: list[Any] = [
        {"role": "user", "content": "a"},
        {"role": "system", "content": "Be brief"},
        {
            "role": "assistant",
            "content": [{"type": "redacted_thinking", "data": "x"}, *parts],
        },
        {"role": "user", "content": "SAY:c"},
        {"role": "system", "content": [{"type": "text", "text": "SAY:d"}]},
    ]
    async with serving() as s:
        body = {"model": MODEL, "max_tokens": 5, "messages": messages, **CLAUDE_CODE}
        reply = await s.post("/v1/messages?beta=true", body)
        assert reply.json["content"] == [{"type": "text", "text": "d"}], reply.body
    rendered, options = s.engine.rendered[-1]
    roles = [(m["role"], m["content"]) for m in rendered]
    assert roles[1:3] == [("system", "Be brief"), ("assistant", "b")]
    assert roles[4] == ("system", "SAY:d")
    assert options["reasoning_effort"] == "high"
    assert options["enable_thinking"] is True


@pytest.mark.parametrize("as_blocks", [False, True])
async def test_a_billing_header_does_not_keep_prompts_from_being_cached(as_blocks: bool) -> None:
    """claude-code#68900, vllm-mlx#277: its hash differs in every request."""
    async with serving() as s:
        for i in range(2):
            header = f"x-anthropic-billing-header: cc_version=2.1; cch={i}abc;"
            texts = [header, "You are x-anthropic-billing-header: neat\nx-anthropic"]
            system: Any = "\n".join(texts)
            if as_blocks:
                system = [{"type": "text", "text": text} for text in texts]
            reply = await s.post("/v1/messages", said("a", system=system))
        usage = reply.json["usage"]
        assert s.engine.rendered[0][0] == s.engine.rendered[1][0]
        assert s.engine.rendered[0][0][0] == {"role": "system", "content": texts[1]}
        assert usage["cache_read_input_tokens"] >= usage["input_tokens"] > 0
        await s.post("/v1/messages", said("a", system=header))
        assert [m["role"] for m in s.engine.rendered[-1][0]] == ["user"]
        await s.post("/v1/messages", said("a", system=f"Beware of {header}"))
        assert s.engine.rendered[-1][0][0]["content"] == f"Beware of {header}"


async def test_count_tokens_is_what_the_message_has() -> None:
    async with serving() as s, client_of(s) as client:
        body = said("hello", system="Be brief", tools=TOOLS)
        message = await client.messages.create(**body)
        del body["max_tokens"]
        count = await client.messages.count_tokens(**body)
        assert count.input_tokens == message.usage.input_tokens > 0
        again = await client.messages.create(**body, max_tokens=9)
        assert again.usage.cache_read_input_tokens == 16 * ((count.input_tokens - 1) // 16)
        assert again.usage.input_tokens + again.usage.cache_read_input_tokens == count.input_tokens


async def test_extensions_of_vllm() -> None:
    """They reach the engine, which has no processor for the last one."""
    async with serving() as s:
        body = {**said("a"), "cache_salt": "me", "chat_template_kwargs": {"shout": True}}
        assert (await s.post("/v1/messages", body)).status == 200
        assert s.engine.rendered[-1][1]["shout"]
        reply = await s.post("/v1/messages", {**body, "vllm_xargs": {"a": 1}})
        assert reply.status == 400
        assert "extra_args are for logits processors" in reply.json["error"]["message"]


async def test_errors_have_anthropics_shape() -> None:
    async with serving() as s, client_of(s) as client:
        with pytest.raises(anthropic.NotFoundError, match="does not exist"):
            await client.messages.create(**said("a", model="nope"))
        with pytest.raises(anthropic.BadRequestError, match="max_tokens=0") as caught:
            await client.messages.create(**said("a", max_tokens=0))
        body = caught.value.body
        assert isinstance(body, dict)
        assert body["type"] == "error"
        assert body["error"]["type"] == "invalid_request_error"
        assert body["request_id"]
        stream = await client.messages.create(
            **{**said(""), "messages": [{"role": "user", "content": "FAIL:"}]}, stream=True
        )
        with pytest.raises(anthropic.APIStatusError, match="this request met an error"):
            async for _ in stream:
                pass
        reply = await s.get("/v1/messages")
        assert (reply.status, reply.json["error"]["type"]) == (405, "invalid_request_error")
        reply = await s.raw(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n{")
        assert reply.json["error"]["type"] == "invalid_request_error"
    async with serving(api_key=["k"]) as s:
        async with client_of(s) as client:
            with pytest.raises(anthropic.AuthenticationError, match="API key"):
                await client.messages.create(**said("a"))
        async with AsyncAnthropic(base_url=s.url, api_key="k") as client:
            assert (await client.messages.create(**said("a"))).content[0].text == "a"  # type: ignore[union-attr]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "at least one message"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "one of user, assistant, system"),
    ({"messages": [{"role": "system", "content": [{"type": "image"}]}]}, "supported: text"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "type 'image'"),
    ({"messages": [{"role": "user", "content": 3}]}, "text or a list of blocks"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, "must be text"),
    ({"messages": [{"role": "user", "content": "a", "name": "b"}]}, "unsupported field 'name'"),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
        "tool_use_id",
    ),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": "x"}]}]},
        "must be an object",
    ),
    ({"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]}, "tool_use"),
    ({"system": [{"type": "image"}]}, "supported: text"),
    ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "would run on the server"),
    ({"tools": [{"name": "f"}]}, "JSON schema"),
    ({"tools": [{"input_schema": {}}]}, r"tools\[0\].name"),
    ({"tools": TOOLS, "tool_choice": {"type": "some"}}, "auto, any or none"),
    ({"tools": TOOLS, "tool_choice": {"type": {"a": 1}}}, "auto, any or none"),
    ({"thinking": {"type": []}}, "must be enabled, adaptive or disabled"),
    ({"messages": [{"role": {"a": 1}, "content": "x"}]}, "role={'a': 1} must be one of"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "nope"}},
        "names the function .nope.; tools has",
    ),
    ({"tool_choice": {"type": "any"}}, "needs tools"),
    ({"thinking": {"type": "enabled"}}, "budget_tokens"),
    ({"thinking": {"type": "on"}}, "enabled, adaptive or disabled"),
    ({"output_config": {"effort": "auto"}}, "effort='auto' must be one of none, minimal, low"),
    ({"output_config": {"effort": ["low"]}}, "must be one of"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "not supported"),
    ({"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "not supported"),
    ({"output_config": {"format": {"type": "json"}}}, "json_schema"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"stop_sequences": [""]}, "stop"),
    ({"mcp_servers": [{}]}, "not supported"),
    ({"tempature": 1}, "did you mean 'temperature'"),
]


@pytest.mark.parametrize(("fields", "words"), WRONG, ids=range(len(WRONG)))
async def test_what_is_wrong_is_said(fields: dict[str, Any], words: str) -> None:
    async with serving() as s:
        reply = await s.post("/v1/messages", said("a", **fields))
        assert reply.status == 400
        body = reply.json
        assert body["error"]["type"] == "invalid_request_error"
        with pytest.raises(AssertionError, match=words):
            raise AssertionError(body["error"]["message"])


async def test_streams_add_up_however_the_answer_is_made() -> None:
    rng = random.Random(1)
    parts = [
        *("hello ", "Zoë", "\n", "<think>", "</think>", "<", "END", '"', "🇫🇷", "<tool_call>"),
        *(hermes("get_time"), hermes("get_weather", city="Paris"), "</tool_call>"),
    ]
    config = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    async with serving(**config) as s, client_of(s) as client:
        num_compared = 0
        for number in range(40):
            text = "".join(rng.choices(parts, k=rng.randrange(1, 7)))
            fields = {
                "tools": TOOLS,
                "thinking": {"type": "enabled", "budget_tokens": 1024},
                "stop_sequences": ["END"] if number % 2 else [],
                "max_tokens": rng.choice([5, 40, 500]),
            }
            body = said(text, **fields)
            whole = await client.messages.create(**body)
            if whole.stop_reason == "max_tokens" and whole.content[-1].type == "tool_use":
                continue  # the client adds half an input up in its own way
            await both(client, body)
            num_compared += 1
    assert num_compared > 30


async def test_a_special_token_that_marks_a_call_is_found() -> None:
    tokenizer = FakeTokenizer(specials=["<tool_call>", "</tool_call>"])
    engine = FakeEngine(tokenizer=tokenizer)
    async with serving(engine, tool_call_parser="hermes") as s, client_of(s) as client:
        message = await both(client, said("ok" + hermes("get_time"), tools=TOOLS))
        assert [b.type for b in message.content] == ["text", "tool_use"]


async def test_leaving_a_stream_aborts_it() -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine) as s, client_of(s) as client:
        body = {**said(""), "messages": [{"role": "user", "content": "count"}], "max_tokens": 3000}
        stream = await client.messages.create(**body, stream=True)
        async for event in stream:
            if event.type == "content_block_delta":
                break
        await stream.close()
        await eventually(lambda: engine.is_idle)
    assert engine.metrics.aborted["disconnect"] == 1


def test_the_sync_client() -> None:
    def talk(url: str) -> list[str]:
        with Anthropic(base_url=url, api_key="none") as client:
            whole = client.messages.create(**said("whole"))
            with client.messages.stream(**said("stream")) as stream:
                return [whole.content[0].text, "".join(stream.text_stream)]  # type: ignore[union-attr]

    async def run() -> list[str]:
        async with serving() as s:
            return await asyncio.to_thread(talk, s.url)

    assert asyncio.run(run()) == ["whole", "stream"]
