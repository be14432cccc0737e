"""OpenAI's client, `client.responses`, on the default model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.entrypoints.openai.live import Live, live

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[Live]:
    with live("--served-model-name", "m") as server:
        yield server


@pytest.fixture
def client(server: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_stream_adds_up_and_the_conversation_goes_on(client: OpenAI) -> None:
    body: dict[str, Any] = {"model": "m", "input": "What is the capital of France?"}
    body |= {"temperature": 0, "max_output_tokens": 32}
    whole = client.responses.create(**body)
    assert "Paris" in whole.output_text
    with client.responses.stream(**body) as stream:
        pieces = [e.delta for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(pieces) == final.output_text == whole.output_text
    again = client.responses.create(**{**body, "previous_response_id": whole.id})
    assert again.usage is not None
    assert whole.usage is not None
    assert again.usage.input_tokens > whole.usage.total_tokens


def test_a_forced_call_is_valid(client: OpenAI) -> None:
    tool: Any = {
        "type": "function",
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }
    response = client.responses.create(
        model="m", input="Weather in Paris?", tools=[tool], tool_choice="required"
    )
    for item in response.output:
        assert item.type == "function_call"
        assert item.name == "get_weather"
        assert list(json.loads(item.arguments)) == ["city"]


def test_a_background_response_is_the_same(client: OpenAI) -> None:
    body: dict[str, Any] = {"model": "m", "input": "Name a river.", "max_output_tokens": 16}
    whole = client.responses.create(**body, temperature=0)
    stream = client.responses.create(**body, temperature=0, background=True, stream=True)
    events = list(stream)
    kept = client.responses.retrieve(events[0].response.id)  # type: ignore[union-attr]
    assert kept.output_text == whole.output_text
