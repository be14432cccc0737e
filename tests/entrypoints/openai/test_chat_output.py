"""Tool calls and reasoning through the route: whole messages, and streams cut at every token."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from octavo.entrypoints.openai.config import ServerConfig
from octavo.errors import ConfigError
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.fake_tokenizer import FakeTokenizer
from tests.entrypoints.openai.harness import MODEL, Reply, Running, serving
from tests.entrypoints.openai.joined import Joined, join, join_message

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "get_time"}},
]
JSON_ONLY: dict[str, Any] = {"tools": None, "response_format": {"type": "json_object"}}
PARIS = {"city": "Paris", "days": 2}
HERMES = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
)
TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'


async def both(s: Running, text: str, **fields: Any) -> tuple[dict[str, Any], Joined]:
    """The choice of a whole answer and of a stream, which must say the same."""
    fields = {"max_tokens": 2000, "tools": TOOLS, **fields}
    reply = await s.chat("SAY:" + text, **fields)
    assert reply.status == 200, reply.body
    [choice] = reply.json["choices"]
    streamed = await s.chat("SAY:" + text, stream=True, **fields)
    joined = join(streamed.events)
    assert joined == join_message(choice)
    return choice, joined


async def test_tool_calls_are_counted() -> None:
    async with serving(tool_call_parser="hermes") as s:
        await both(s, HERMES + TIME)
        await s.chat("SAY:no call", tools=TOOLS, n=2)
        await s.chat("SAY:" + TIME)  # without tools it is text
        metrics = await s.metrics()
        assert metrics["tool_call_parser_invocations_total"] == 4
        assert metrics["tool_calls_total"] == 4


def names_and_arguments(calls: list[Any]) -> list[tuple[str, str]]:
    return [(c["function"]["name"], c["function"]["arguments"]) for c in calls]


ANSWERS = {
    "hermes": f"Let me look.\n{HERMES}\n{TIME}",
    "llama3_json": '{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}; '
    '{"name": "get_time", "parameters": {}}',
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, '
    '{"name": "get_time", "arguments": {}}]',
    "pythonic": '[get_weather(city="Paris", days=2), get_time()]',
    "granite": '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, '
    '{"name": "get_time", "arguments": {}}]',
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
    "openai": "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city": "Paris", "days": 2}<|call|><|start|>assistant<|channel|>commentary '
    "to=functions.get_time <|constrain|>json<|message|>{}<|call|>",
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_parallel_calls(name: str) -> None:
    async with serving(tool_call_parser=name) as s:
        choice, joined = await both(s, ANSWERS[name])
        message = choice["message"]
        assert choice["finish_reason"] == "tool_calls"
        assert message["content"] == ("Let me look." if name == "hermes" else None)
        calls = names_and_arguments(message["tool_calls"])
        assert [(n, json.loads(a)) for n, a in calls] == [("get_weather", PARIS), ("get_time", {})]
        ids = [c["id"] for c in message["tool_calls"]] + joined.ids
        assert len(set(ids)) == 4
        assert all(len(i) == 9 if name == "mistral" else i.startswith("chatcmpl-") for i in ids)
        if name not in ("pythonic", "qwen3_coder"):
            assert joined.num_pieces > 20, "arguments come as they are written"
        choice, _ = await both(s, ANSWERS[name], parallel_tool_calls=False)
        assert [n for n, _ in names_and_arguments(choice["message"]["tool_calls"])] == [
            "get_weather"
        ]


async def test_random_answers() -> None:
    """Whatever comes, a stream says what the whole answer says (`both` compares them)."""
    rng = random.Random(0)
    pieces = [HERMES, TIME, "<think>", "</think>", "<tool_call>", "</tool_call>", "Zoë ", "\n"]
    pieces += ['{"name": "get_time"', "}", "<", "tool", "👨‍👩‍👧‍👦"]
    reasons: Counter[str] = Counter()
    async with serving(tool_call_parser="hermes", reasoning_parser="qwen3") as s:
        for number in range(40):
            text = "".join(rng.choices(pieces, k=rng.randrange(1, 9)))
            stop = "oë" if number % 3 else None
            choice, _ = await both(s, text, stop=stop, max_tokens=rng.choice([9, 900]))
            reasons[choice["finish_reason"]] += 1
    assert min(reasons[r] for r in ("stop", "length", "tool_calls")) >= 3, reasons


async def test_what_is_no_call() -> None:
    async with serving(tool_call_parser="hermes") as s:
        for text in ("No call.", "", "<tool_call>", "a < b <tool", "Zoë <tool_call>12</tool_call>"):
            choice, _ = await both(s, text)
            assert choice["message"]["content"] == text
            assert "tool_calls" not in choice["message"]
            assert choice["finish_reason"] == "stop"
        for fields in ({"tools": None}, {"tool_choice": "none"}):
            choice, _ = await both(s, HERMES, **fields)
            assert choice["message"]["content"] == HERMES
    async with serving(tool_call_parser="none") as s:
        choice, _ = await both(s, HERMES)
        assert choice["message"]["content"] == HERMES


async def test_a_call_cut_by_max_tokens() -> None:
    async with serving(tool_call_parser="hermes") as s:
        choice, _ = await both(s, HERMES, max_tokens=HERMES.index("Paris") + 2)
        assert choice["finish_reason"] == "length"
        [call] = choice["message"]["tool_calls"]
        assert call["function"]["arguments"] == '{"city": "Pa'


async def test_reasoning() -> None:
    text = f"<think>\nHm, <b>\n</think>\n\nHere:{HERMES}"
    async with serving(tool_call_parser="hermes", reasoning_parser="qwen3") as s:
        choice, _ = await both(s, text)
        message = choice["message"]
        assert (message["reasoning"], message["content"]) == ("Hm, <b>", "Here:")
        assert len(message["tool_calls"]) == 1
        choice, _ = await both(s, text, include_reasoning=False)
        assert "reasoning" not in choice["message"]
        assert choice["message"]["content"] == "Here:"
        choice, _ = await both(s, text, tools=None)
        assert choice["message"]["content"] == f"Here:{HERMES}"
        choice, _ = await both(s, "<think>cut", tools=None, max_tokens=9)
        assert choice["message"]["reasoning"] == "cu"
        assert choice["message"]["content"] is None
        assert choice["finish_reason"] == "length"


async def test_reasoning_that_the_template_opened() -> None:
    engine = FakeEngine(tokenizer=FakeTokenizer(opens="<think>\n"))
    async with serving(engine, reasoning_parser="deepseek_r1") as s:
        choice, _ = await both(s, "Hm.</think>Yes.", tools=None)
        assert choice["message"]["reasoning"] == "Hm."
        assert choice["message"]["content"] == "Yes."
        choice, _ = await both(s, "Hm.</think>\n{}", **JSON_ONLY)
        assert choice["message"]["reasoning"] == "Hm."
        assert choice["message"]["content"] == "{}"


async def test_formats_come_from_the_template() -> None:
    template = "{{ '<tool_call>' }} {{ '</think>' }}"
    engine = FakeEngine(tokenizer=FakeTokenizer(chat_template_source=template))
    async with serving(engine, enable_auto_tool_choice=True) as s:
        choice, _ = await both(s, f"<think>a</think>{HERMES}")
        assert choice["message"]["reasoning"] == "a"
        assert choice["finish_reason"] == "tool_calls"


async def test_flags() -> None:
    with pytest.raises(ConfigError, match=r"tool_call_parser='her' .* hermes, .*openai.*, none"):
        ServerConfig(tool_call_parser="her")
    with pytest.raises(ConfigError, match="reasoning_parser='x' must be one of deepseek_r1, "):
        ServerConfig(reasoning_parser="x")
    with pytest.raises(ConfigError, match="needs a tool_call_parser"):
        ServerConfig(tool_call_parser="none", enable_auto_tool_choice=True)
    with pytest.raises(ConfigError, match="the chat template shows none"):
        async with serving(enable_auto_tool_choice=True):
            pass


@pytest.mark.parametrize("skip", [None, True, False])
async def test_markers_may_be_special_tokens(skip: bool | None) -> None:
    """They are found; other special tokens are left out of the content, unless asked for."""
    tokenizer = FakeTokenizer(specials=["<tool_call>", "</tool_call>", "<think>", "<pad>"])
    async with serving(
        FakeEngine(tokenizer=tokenizer), tool_call_parser="hermes", reasoning_parser="granite"
    ) as s:
        choice, _ = await both(s, f"<think>a<pad>b{HERMES}", skip_special_tokens=skip)
        assert choice["message"]["content"] == ("<think>a<pad>b" if skip is False else "ab")
        assert len(choice["message"]["tool_calls"]) == 1
        choice, _ = await both(s, "a<pad>b", skip_special_tokens=skip, tools=None)
        assert choice["message"]["content"] == ("a<pad>b" if skip is False else "ab")


async def test_several_choices_with_logprobs_and_ids() -> None:
    """Each choice has its own parser; ids and logprobs are of all tokens."""
    text = 'a#<tool_call>{"name": "get_time", "arguments": {"n": #}}</tool_call>'
    fields: dict[str, Any] = {"tools": TOOLS, "n": 2, "logprobs": True, "return_token_ids": True}
    async with serving(tool_call_parser="hermes") as s:
        whole = (await s.chat("SAY:" + text, **fields)).json["choices"]
        events = (await s.chat("SAY:" + text, stream=True, **fields)).events
        for choice in whole:
            i = choice["index"]
            said = text.replace("#", str(i))
            joined = join(events, i)
            assert joined.content == choice["message"]["content"] == f"a{i}"
            assert joined.calls[0]["arguments"] == f'{{"n": {i}}}'
            news = [c for e in events for c in e["choices"] if c["index"] == i]
            ids = [t for c in news for t in c.get("token_ids", ())]
            assert ids == choice["token_ids"]
            assert bytes(ids[:-1]).decode() == said
            logprobs = [t for c in news if c["logprobs"] for t in c["logprobs"]["content"]]
            assert logprobs == choice["logprobs"]["content"]
            assert len(logprobs) == len(ids)


# ------------------------------------------------------------ required, named


async def test_required() -> None:
    """The grammar's answer, a list, is given as calls; white space may be anywhere."""
    said = '[ {"name": "get_weather", "parameters": {"city": "a]", "days": 2}},\n'
    said += '{"name":"get_time","parameters":{}}]'
    async with serving(reasoning_parser="qwen3") as s:
        choice, joined = await both(s, said, tool_choice="required")
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        calls = names_and_arguments(choice["message"]["tool_calls"])
        assert calls == [("get_weather", '{"city": "a]", "days": 2}'), ("get_time", "{}")]
        assert joined.num_pieces > 20


async def test_named() -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    async with serving() as s:
        for said in ('{"city": "Paris"}', '{"city": "<tool_call>"}', "{ }"):
            choice, _ = await both(s, said, tool_choice=named)
            calls = names_and_arguments(choice["message"]["tool_calls"])
            assert calls == [("get_weather", said)]
            assert choice["message"]["content"] is None
            assert choice["finish_reason"] == "stop"
        choice, _ = await both(s, '{"city": 1}', tool_choice=named, max_tokens=4)
        assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("thought", ["", "<think>\nA { or so\n</think>\n\n"])
async def test_reasoning_comes_in_front_of_what_a_grammar_binds(thought: str) -> None:
    """vllm#12619, #19222, #39138."""
    reasoning = "A { or so" if thought else None
    named = {"type": "function", "function": {"name": "get_time"}}
    async with serving(reasoning_parser="qwen3", tool_call_parser="hermes") as s:
        said = '{"a": "<think>b</think>"}'
        choice, _ = await both(s, thought + said, **JSON_ONLY)
        assert (choice["message"]["content"], choice["finish_reason"]) == (said, "stop")
        assert choice["message"].get("reasoning") == reasoning
        said = '[{"name": "get_time", "parameters": {"a": "</think>"}}]'
        choice, _ = await both(s, thought + said, tool_choice="required")
        calls = names_and_arguments(choice["message"]["tool_calls"])
        assert calls == [("get_time", '{"a": "</think>"}')]
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
        assert choice["message"].get("reasoning") == reasoning
        choice, _ = await both(s, thought + "{}", tool_choice=named, include_reasoning=False)
        assert names_and_arguments(choice["message"]["tool_calls"]) == [("get_time", "{}")]
        assert "reasoning" not in choice["message"]


async def test_texts_of_the_request_are_taken_apart_too() -> None:
    """Such a grammar may say of itself where reasoning and calls are."""
    said = f"<think>Hm.</think>\nSo:\n{HERMES}"
    async with serving(reasoning_parser="qwen3", tool_call_parser="hermes") as s:
        choice, _ = await both(s, said, structured_outputs={"choice": [said, "no"]})
        message = choice["message"]
        assert (message["reasoning"], message["content"]) == ("Hm.", "So:")
        [(name, arguments)] = names_and_arguments(message["tool_calls"])
        assert (name, json.loads(arguments)) == ("get_weather", PARIS)
        assert choice["finish_reason"] == "tool_calls"


THINKS = "{{ '</think>' }}"
OFF = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.mark.parametrize(
    ("parser", "opens", "template", "fields", "marks"),
    [
        ("qwen3", "", THINKS, {}, ("<think>", "</think>")),
        ("qwen3", "", "", {}, (None, None)),
        ("qwen3", "", THINKS, OFF, (None, None)),
        ("qwen3", "", THINKS, {"reasoning_effort": "none"}, (None, None)),
        ("qwen3", "<think>\n", "", {}, (None, "</think>")),
        ("qwen3", "<think>\n\n</think>\n\n", THINKS, {}, (None, None)),
        ("deepseek_r1", "", THINKS, {}, (None, "</think>")),
        ("deepseek_r1", "", "", {}, (None, None)),
        ("deepseek_r1", "", THINKS, OFF, (None, None)),
        ("qwen3", "", THINKS, {"regex": "a", "reasoning_end_str": "!"}, (None, "!")),
        ("qwen3", "", THINKS, {"regex": "a"}, (None, None)),
        ("qwen3", "<think>\n", "", {"grammar": 'start: "a"'}, (None, "</think>")),
        ("qwen3", "<think>\n", "", {"choice": ["a</think>b"]}, (None, None)),
    ],
)
async def test_how_far_the_grammar_is_free(
    parser: str,
    opens: str,
    template: str,
    fields: dict[str, Any],
    marks: tuple[str | None, str | None],
) -> None:
    """As the template left it: the model may open reasoning, is in it, or is behind it. A model
    whose template knows of none is not let begin any."""
    if fields.keys() & {"regex", "grammar", "choice"}:
        fields = {"structured_outputs": fields}
    tokenizer = FakeTokenizer(opens=opens, chat_template_source=template)
    async with serving(FakeEngine(tokenizer=tokenizer), reasoning_parser=parser) as s:
        body = {"messages": [{"role": "user", "content": "SAY:x"}], "max_tokens": 3, **fields}
        if "structured_outputs" not in fields:
            body |= JSON_ONLY
        rendered = (await s.post("/v1/chat/completions/render", body)).json
        wanted = rendered["sampling_params"]["structured_outputs"]
        assert (wanted.get("reasoning_start_str"), wanted.get("reasoning_end_str")) == marks


@pytest.mark.parametrize("fields", [OFF, {"reasoning_effort": "none"}, JSON_ONLY])
async def test_no_reasoning_where_there_cannot_be_any(fields: dict[str, Any]) -> None:
    """vllm#19222: an answer that does not reason is content, with deepseek_r1 too."""
    async with serving(reasoning_parser="deepseek_r1") as s:
        choice, _ = await both(s, "{}", **{"tools": None, **fields})
        assert choice["message"]["content"] == "{}"


@pytest.mark.parametrize(
    ("prefill", "reasoning", "content"),
    [
        ("<think>So SAY: on", " on", None),
        ("<think>So</think> SAY: on", None, " on"),
        ("SAY: on", None, " on"),
    ],
)
async def test_an_answer_that_the_request_began(
    prefill: str, reasoning: str | None, content: str | None
) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": prefill}]
    async with serving(reasoning_parser="deepseek_r1") as s:
        body = {"messages": messages, "continue_final_message": True, "max_tokens": 99}
        message = (await s.post("/v1/chat/completions", body)).json["choices"][0]["message"]
        assert (message.get("reasoning"), message["content"]) == (reasoning, content)


async def test_forced_calls_that_cannot_be() -> None:
    def error(reply: Reply) -> str:
        assert reply.status == 400, reply.body
        return f"{reply.error['param']}: {reply.error['message']}"

    named = {"type": "function", "function": {"name": "f"}}
    twice = [
        {"type": "function", "function": {"name": "a", "parameters": {"type": kind}}}
        for kind in ("object", "array")
    ]
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"items": deep}
    async with serving() as s:
        for fields, expected in (
            ({"tool_choice": "required"}, "tool_choice: tool_choice='required' needs tools"),
            ({"tool_choice": named, "tools": TOOLS}, "names the function 'f'; tools has ['get_we"),
            (
                {"tool_choice": "some", "tools": TOOLS},
                "must be 'auto', 'none', 'required', {'type'",
            ),
            ({"tool_choice": {"type": "function"}, "tools": TOOLS}, "must be 'auto'"),
            ({"tool_choice": "required", "tools": twice}, "tools: tools[0] and tools[1] differ"),
            ({"tools": twice}, "tools: tools[0] and tools[1] differ, and both are named 'a'"),
            (
                {
                    "tool_choice": "required",
                    "tools": [{"type": "function", "function": {"name": "f", "parameters": deep}}],
                },
                "tools: tools: json is nested",
            ),
            (
                {
                    "tool_choice": "required",
                    "tools": TOOLS,
                    "response_format": {"type": "json_object"},
                },
                "tool_choice='required' does not go with response_format",
            ),
            (
                {"tool_choice": "required", "tools": TOOLS, "use_beam_search": True},
                "tool_choice='required' does not go with use_beam_search",
            ),
        ):
            assert expected in error(await s.chat(**fields))


# ------------------------------------------------------------ the official client


def _converse(client: OpenAI, *, stream: bool) -> str:
    """Two calls at once, their results, the answer."""
    messages: list[Any] = [{"role": "user", "content": f"SAY:I look.{HERMES}{TIME}"}]
    if stream:
        with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as events:
            message: Any = events.get_final_completion().choices[0].message
    else:
        message = (
            client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
            .choices[0]
            .message
        )
    assert message.content == "I look."
    messages.append(message.model_dump(exclude_unset=True))
    for call, result in zip(message.tool_calls, ("20 °C", "SAY:It is noon, and 20 °C.")):
        json.loads(call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    assert answer.choices[0].finish_reason == "stop"
    return answer.choices[0].message.content or ""


@pytest.mark.parametrize("stream", [False, True])
async def test_a_round_trip_of_the_sync_client(stream: bool) -> None:
    async with serving(tool_call_parser="hermes") as s:
        with OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) as client:
            answer = await asyncio.to_thread(_converse, client, stream=stream)
        assert answer == "It is noon, and 20 °C."
        _, assistant, *results = s.engine.rendered[-1][0]
        assert [c["function"]["name"] for c in assistant["tool_calls"]] == [
            "get_weather",
            "get_time",
        ]
        assert [c["id"] for c in assistant["tool_calls"]] == [r["tool_call_id"] for r in results]


async def test_a_stream_of_the_async_client() -> None:
    async with (
        serving(tool_call_parser="hermes", reasoning_parser="qwen3") as s,
        AsyncOpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        reasoning, arguments, names, reasons = "", "", [], []
        async for chunk in await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"SAY:<think>Hm.</think>{HERMES}"}],
            tools=TOOLS,
            stream=True,
        ):
            [choice] = chunk.choices
            reasoning += getattr(choice.delta, "reasoning", None) or ""
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                names += [call.function.name] if call.function.name else []
                arguments += call.function.arguments or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
        assert (reasoning, names, json.loads(arguments)) == ("Hm.", ["get_weather"], PARIS)
        assert reasons == ["tool_calls"]


async def test_stop_strings_are_searched_in_content_alone() -> None:
    """`Paris` stands in the reasoning and in a call before it ends the content."""
    text = f"<think>Paris?</think>Looking.{HERMES}So: Paris it is"
    async with serving(tool_call_parser="hermes", reasoning_parser="qwen3") as s:
        choice, joined = await both(s, text, stop=["Paris"])
        assert joined.content == "Looking.So: "
        assert joined.reasoning == "Paris?"
        assert json.loads(joined.calls[0]["arguments"]) == PARIS
        assert choice["stop_reason"] == "Paris"
        assert choice["finish_reason"] == "tool_calls"
        # A forced call has no content that could hold one.
        arguments = json.dumps(PARIS)
        choice, joined = await both(
            s,
            arguments,
            stop=["Paris"],
            tool_choice={"type": "function", "function": {"name": "get_weather"}},
        )
        assert joined.calls == [{"name": "get_weather", "arguments": arguments}]
        assert choice["stop_reason"] is None
