"""Anthropic's client on the default model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic

from tests.entrypoints.openai.live import Live, live

pytestmark = pytest.mark.model

TOOLS: list[Any] = [
    {
        "name": name,
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }
    for name in ("get_weather", "get_time")
]
ASK: list[Any] = [{"role": "user", "content": "What are the weather and the time in Paris?"}]


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[Live]:
    with live("--served-model-name", "m") as server:
        yield server


@pytest.fixture
def client(server: Live) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def test_a_stream_adds_up_to_the_whole_message(client: Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
    body: dict[str, Any] = {"model": "m", "max_tokens": 32, "messages": messages}
    body["extra_body"] = {"temperature": 0}
    whole = client.messages.create(**body)
    with client.messages.stream(**body) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text  # type: ignore[union-attr]
    assert "Paris" in text
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", whole.usage.output_tokens)
    count = client.messages.count_tokens(model="m", messages=messages)
    usage = final.usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_forced_calls_are_valid(client: Anthropic) -> None:
    """One by its name, and any number of them: arguments follow the schema."""
    choice: Any
    for choice in ({"type": "tool", "name": "get_time"}, {"type": "any"}):
        with client.messages.stream(
            model="m", max_tokens=200, messages=ASK, tools=TOOLS, tool_choice=choice
        ) as stream:
            message = stream.get_final_message()
        assert message.stop_reason == "tool_use"
        assert message.content
        for block in message.content:
            assert block.type == "tool_use"
            assert block.name in ("get_time", choice.get("name", "get_weather"))
            assert list(block.input) == ["city"]


def test_parallel_calls_and_their_results(client: Anthropic) -> None:
    """Two calls and their results go through the template, and the answer goes on."""
    calls = [
        {"type": "tool_use", "id": f"toolu_{i}", "name": tool["name"], "input": {"city": "Paris"}}
        for i, tool in enumerate(TOOLS)
    ]
    results = [
        {"type": "tool_result", "tool_use_id": f"toolu_{i}", "content": text}
        for i, text in enumerate(["12 °C and rain", "14:05"])
    ]
    history = [
        *ASK,
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
    ]
    message = client.messages.create(
        model="m", max_tokens=40, messages=history, tools=TOOLS, extra_body={"temperature": 0}
    )
    assert message.content[0].type == "text"
    assert message.content[0].text
