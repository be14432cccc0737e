"""OpenAI's client, unmodified, on /v1/responses."""

from __future__ import annotations

import json
import random
from typing import Any

import openai
import pytest

from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import MODEL, eventually, serving
from tests.entrypoints.openai.official_client import client_of
from tests.entrypoints.responses.responses_lab import (
    both,
    check_events,
    said,
)

TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
        "strict": True,
    },
    {"type": "function", "name": "get_time", "parameters": {}},
]


def hermes(name: str, **arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


async def test_text_and_what_is_said_of_it() -> None:
    async with serving() as s, client_of(s) as client:
        response = await both(client, said("Zoë 你好", metadata={"a": "b"}, user="u", top_p=0.5))
        assert response.output_text == "Zoë 你好"
        assert response.status == "completed"
        assert response.metadata == {"a": "b"}
        assert response.top_p == 0.5
        assert response.usage.input_tokens > 0
        assert response.usage.output_tokens == len("Zoë 你好".encode()) + 1
        cut = await both(client, said("a long answer", max_output_tokens=3))
        assert (cut.output_text, cut.status) == ("a l", "incomplete")
        assert cut.incomplete_details.reason == "max_output_tokens"
        assert cut.output[0].status == "incomplete"
        async with client.responses.stream(**said("helper")) as stream:
            final = await stream.get_final_response()
        assert final.output_text == "helper"
        forms: list[Any] = [{"type": "json_object"}]
        forms.append(
            {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
        )
        for form in forms:
            response = await both(client, said("{}", text={"format": form}))
            assert response.output_text == "{}"


async def test_calls_and_their_outputs() -> None:
    text = f"Let me look.\n{hermes('get_weather', city='Paris')}\n{hermes('get_time')}"
    async with serving(tool_call_parser="hermes") as s, client_of(s) as client:
        response = await both(client, said(text, tools=TOOLS))
        message, paris, time = response.output
        assert message.content[0].text == "Let me look."
        assert (paris.type, paris.name) == ("function_call", "get_weather")
        assert json.loads(paris.arguments) == {"city": "Paris"}
        assert paris.call_id.startswith("call_")
        assert paris.call_id != time.call_id
        one = await both(client, said(text, tools=TOOLS, parallel_tool_calls=False))
        assert len(one.output) == 2
        outputs: list[Any] = [
            {"type": "function_call_output", "call_id": paris.call_id, "output": "12 °C"},
            {"type": "function_call_output", "call_id": time.call_id, "output": "14:05"},
            {"role": "user", "content": [{"type": "input_text", "text": "SAY:done"}]},
        ]
        start: list[Any] = [{"role": "user", "content": "SAY:" + text}]
        for fields in (
            {"previous_response_id": response.id, "input": outputs},
            {"input": [*start, *response.output, *outputs]},  # the client keeps the conversation
        ):
            answer: Any = await client.responses.create(model=MODEL, tools=TOOLS, **fields)
            assert answer.output_text == "done"
            rendered, _ = s.engine.rendered[-1]
            assert [m["role"] for m in rendered] == ["user", "assistant", "tool", "tool", "user"]
            assert rendered[1]["content"] == "Let me look."
            assert [c["id"] for c in rendered[1]["tool_calls"]] == [paris.call_id, time.call_id]
            assert rendered[2]["content"] == "12 °C"
        for choice, words in (
            ("required", '[{"name": "get_time", "parameters": {}}]'),
            ({"type": "function", "name": "get_time"}, "{}"),
        ):
            forced = await both(client, said(words, tools=TOOLS, tool_choice=choice))
            assert [(i.name, i.arguments) for i in forced.output] == [("get_time", "{}")]


async def test_reasoning_is_an_item() -> None:
    async with serving(reasoning_parser="qwen3") as s, client_of(s) as client:
        response = await both(client, said("<think>hmm</think>Yes", reasoning={"effort": "low"}))
        thought, message = response.output
        assert thought.content[0].text == "hmm"
        assert message.content[0].text == "Yes"
        assert s.engine.rendered[-1][1]["reasoning_effort"] == "low"
        await client.responses.create(
            model=MODEL,
            input="SAY:ok",
            previous_response_id=response.id,
            reasoning={"effort": "none"},
        )
        rendered, options = s.engine.rendered[-1]
        assert rendered[1] == {"role": "assistant", "content": "Yes", "reasoning_content": "hmm"}
        assert options["enable_thinking"] is False


async def test_a_client_that_keeps_the_conversation_carries_the_reasoning() -> None:
    """Codex and OpenAI's agents ask for `reasoning.encrypted_content` (vllm#32247), and send items
    back without what they do not need to understand."""
    text = "<think>hm, 你好</think>Yes"
    body = said(text, store=False, include=["reasoning.encrypted_content"])
    body |= {"reasoning": {"summary": "detailed"}, "client_metadata": {"a": "b"}}
    async with serving(reasoning_parser="qwen3") as s, client_of(s) as client:
        stream = await client.post("/responses", cast_to=object, body=body)
        thought, message = stream["output"]  # type: ignore[index]
        assert thought["content"] == [{"type": "reasoning_text", "text": "hm, 你好"}]
        del thought["content"]
        for extra in (
            {"id": None, "status": None, "content": None},
            {"encrypted_content": None, "summary": [{"type": "summary_text", "text": "hm, 你好"}]},
        ):
            items = [{"role": "user", "content": "a"}, {**thought, **extra}, message]
            items.append({"role": "user", "content": "SAY:ok"})
            await client.post("/responses", cast_to=object, body={"input": items})
            rendered, _ = s.engine.rendered[-1]
            assert rendered[1] == {
                "role": "assistant",
                "content": "Yes",
                "reasoning_content": "hm, 你好",
            }
        without = await both(client, said(text))
        assert without.output[0].encrypted_content is None
        asked: list[Any] = ["reasoning.encrypted_content", "message.output_text.logprobs"]
        response = await both(client, said(text, include=asked))
        assert response.output[0].encrypted_content == thought["encrypted_content"]
        assert response.output[1].content[0].logprobs


async def test_the_number_of_input_tokens() -> None:
    """vllm#49533."""
    async with serving() as s, client_of(s) as client:
        first = await client.responses.create(**said("one", instructions="Be brief", tools=TOOLS))
        assert first.usage is not None
        body = {"model": MODEL, "instructions": "Be brief", "tools": TOOLS}
        count = await client.responses.input_tokens.count(input="SAY:one", **body)
        assert count.object == "response.input_tokens"
        assert count.input_tokens == first.usage.input_tokens
        second = await client.responses.create(**said("two", previous_response_id=first.id))
        assert second.usage is not None
        count = await client.responses.input_tokens.count(
            input="SAY:two", previous_response_id=first.id
        )
        assert count.input_tokens == second.usage.input_tokens
        for fields, param in (
            ({"input": []}, "input"),
            ({"input": [{"role": "user", "content": None}]}, "input"),
            ({"input": "a" * 9000}, None),
            ({"input": "a", "max_output_tokens": 5}, "max_output_tokens"),
        ):
            reply = await s.post("/v1/responses/input_tokens", fields)
            assert (reply.status, param) in ((200, None), (400, param)), reply.body
            assert param is None or reply.error["param"] == param
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            reply = await s.post(path, said("x", previous_response_id="no"))
            assert (reply.status, reply.error["param"]) == (404, "previous_response_id")


async def test_logprobs() -> None:
    async with serving() as s, client_of(s) as client:
        include: list[Any] = ["message.output_text.logprobs"]
        response = await both(client, said("abc", include=include, top_logprobs=2))
        logprobs = response.output[0].content[0].logprobs
        assert "".join(p.token for p in logprobs[:3]) == "abc"
        assert [len(p.top_logprobs) for p in logprobs] == [2] * 4


async def test_a_conversation_that_the_server_keeps() -> None:
    async with serving() as s, client_of(s) as client:
        first = await client.responses.create(**said("one", instructions="Be brief"))
        second = await client.responses.create(**said("two", previous_response_id=first.id))
        await client.responses.create(**said("three", previous_response_id=second.id))
        rendered, _ = s.engine.rendered[-1]
        assert [m["content"] for m in rendered] == ["SAY:one", "one", "SAY:two", "two", "SAY:three"]
        again = await client.responses.retrieve(second.id)
        assert again.model_dump() == second.model_dump()
        items = [i async for i in client.responses.input_items.list(second.id)]
        assert [i.content for i in items] == ["SAY:two"]  # type: ignore[union-attr]
        await client.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError, match="there is no response"):
            await client.responses.retrieve(second.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(**said("x", previous_response_id=second.id))
        unkept = await client.responses.create(**said("x", store=False))
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(unkept.id)


async def test_the_pages_of_the_input() -> None:
    async with serving() as s, client_of(s) as client:
        items: list[Any] = [{"role": "user", "content": str(i)} for i in range(5)]
        response = await client.responses.create(
            model=MODEL, input=[*items, {"role": "user", "content": "SAY:x"}]
        )
        listed = client.responses.input_items.list(response.id, limit=2, order="asc")
        assert [i.content async for i in listed] == ["0", "1", "2", "3", "4", "SAY:x"]  # type: ignore[union-attr]
        for query in ("limit=0", "limit=101", "order=up", "after=nope", "what=1"):
            assert (await s.get(f"/v1/responses/{response.id}/input_items?{query}")).status == 400


async def test_only_the_key_that_made_it_sees_a_response() -> None:
    async with serving(api_key=["a", "b"]) as s, client_of(s, "a") as a, client_of(s, "b") as b:
        response = await a.responses.create(**said("secret", background=True))
        await eventually(lambda: s.server.in_flight == 0)
        for attempt in (
            b.responses.retrieve(response.id),
            b.responses.cancel(response.id),
            b.responses.delete(response.id),
            b.responses.create(**said("x", previous_response_id=response.id)),
        ):
            with pytest.raises(openai.NotFoundError):
                await attempt
        assert (await a.responses.retrieve(response.id)).output_text == "secret"


async def test_failures() -> None:
    async with serving() as s, client_of(s) as client:
        with pytest.raises(openai.InternalServerError, match="met an error"):
            await client.responses.create(model=MODEL, input="FAIL:")
        stream = await client.responses.create(model=MODEL, input="FAIL:", stream=True)
        events = [event async for event in stream]
        assert events[-1].type == "response.failed"
        assert events[-1].response.error is not None
        assert "met an error" in events[-1].response.error.message
        check_events(events)
        response = await client.responses.create(model=MODEL, input="FAIL:", background=True)
        await eventually(lambda: s.server.in_flight == 0)
        assert (await client.responses.retrieve(response.id)).status == "failed"


async def test_leaving_a_stream_that_is_not_in_the_background_aborts_it() -> None:
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine) as s, client_of(s) as client:
        stream = await client.responses.create(model=MODEL, input="count", stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        await eventually(lambda: engine.is_idle)
    assert engine.metrics.aborted["disconnect"] == 1


WRONG: list[tuple[dict[str, Any], str, str | None]] = [
    ({"input": 3}, "input", "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "type 'item_reference'", "input"),
    ({"input": [{"role": "x", "content": "a"}]}, "user, assistant, system", "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image", "input"),
    ({"input": [{"role": "user", "content": "a", "nam": 1}]}, "unsupported field 'nam'", "input"),
    ({"input": [{"type": "function_call_output", "output": "a"}]}, "call_id", "input"),
    ({"input": []}, "at least one item", "input"),
    ({"input": [{"role": "user"}]}, r"content must be text", "input"),
    (
        {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]},
        "not valid JSON",
        "input",
    ),
    ({"input": [{"type": "reasoning", "encrypted_content": "gAAA"}]}, "not made here", "input"),
    ({"input": [{"type": "reasoning", "encrypted_content": 3}]}, "must be text", "input"),
    ({"tools": [{"type": "web_search"}]}, "would run on the server", "tools"),
    ({"tools": [{"type": "function"}]}, r"tools\[0\].name", "tools"),
    ({"tool_choice": "required"}, "needs tools", "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools"}}, "must be 'auto'", "tool_choice"),
    ({"text": {"format": {"type": "xml"}}}, r"text.format.type='xml'", "text"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "no schema", "text"),
    ({"input": "a" * 9000}, "shorten the prompt", "input"),
    ({"text": {"verbosity": "high"}}, "text.verbosity", "text"),
    ({"reasoning": {"summary": "some"}}, "reasoning.summary", "reasoning"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "reasoning"),
    ({"include": ["file_search_call.results"]}, "not supported", "include"),
    ({"top_logprobs": 2}, "needs include", "top_logprobs"),
    (
        {"top_logprobs": 2, "include": ["reasoning.encrypted_content"]},
        "needs include",
        "top_logprobs",
    ),
    *(
        ({"max_output_tokens": most}, words, "max_output_tokens")
        for most, words in ((0, "at least 1"), (5000, "more than max_model_len"), (2**40, "in 1"))
    ),
    ({"background": True, "store": False}, "store=true", "store"),
    ({"truncation": "auto"}, "truncation", "truncation"),
    ({"conversation": "c"}, "not supported", "conversation"),
    ({"temperature": 9}, "temperature", "temperature"),
    ({"inptu": 1}, "did you mean 'input'", "inptu"),
]


@pytest.mark.parametrize(("fields", "words", "param"), WRONG, ids=range(len(WRONG)))
async def test_what_is_wrong_is_said(fields: dict[str, Any], words: str, param: str | None) -> None:
    async with serving() as s, client_of(s) as client:
        for mode in ({}, {"background": True}):
            with pytest.raises(openai.BadRequestError, match=words) as caught:
                await client.post(
                    "/responses", cast_to=object, body=said("a", **{**mode, **fields})
                )
            assert caught.value.param == param


async def test_streams_add_up_however_the_answer_is_made() -> None:
    rng = random.Random(1)
    parts = [
        *("hello ", "Zoë", "\n", "<think>", "</think>", "<", "END", '"', "🇫🇷", "<tool_call>"),
        *(hermes("get_time"), hermes("get_weather", city="Paris"), "</tool_call>"),
    ]
    config = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    async with serving(**config) as s, client_of(s) as client:
        for number in range(30):
            text = "".join(rng.choices(parts, k=rng.randrange(1, 7)))
            body = said(text, tools=TOOLS, max_output_tokens=rng.choice([5, 40, 500]))
            body["extra_body"] = {"stop": "END"} if number % 2 else {}
            await both(client, body)
