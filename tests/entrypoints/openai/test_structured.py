"""`response_format` and `structured_outputs`: what they become, and what is wrong with others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.entrypoints.openai.beams import beam_search_params
from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.protocol import CompletionRequest
from octavo.entrypoints.openai.structured import structured_outputs
from octavo.errors import RequestError
from tests.entrypoints.openai.harness import serving

SCHEMA = {"type": "object", "properties": {"z": {}, "a": {}}}
TAG = {"structures": [{"begin": "<f>", "schema": {}, "end": ""}], "triggers": ["<f>"]}


def of(**fields: Any) -> Any:
    params = structured_outputs(CompletionRequest(prompt="", **fields))
    return None if params is None else (params.kind, getattr(params, params.kind))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, ("json_object", True)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            ("json", json.dumps(SCHEMA)),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "strict": True, "schema": {}},
                }
            },
            ("json", "{}"),
        ),
        (
            {"response_format": {"type": "structural_tag", **TAG}},
            ("structural_tag", json.dumps({"type": "structural_tag", **TAG})),
        ),
        ({"structured_outputs": {"choice": ["a"], "regex": None}}, ("choice", ["a"])),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}},
            ("regex", "a"),
        ),
    ],
)
def test_taken(fields: dict[str, Any], expected: Any) -> None:
    assert of(**fields) == expected


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("response_format", {}, "type=None must be one of text"),
        ("response_format", {"type": "json"}, "type='json' must be one of text"),
        ("response_format", {"type": "json_schema"}, "must have json_schema, type"),
        ("response_format", {"type": "json_object", "schema": {}}, "must have type"),
        ("response_format", {"type": "json_schema", "json_schema": {}}, "must have a schema"),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"schema": [1]}},
            "must be a dict or JSON text",
        ),
        ("structured_outputs", {}, "exactly one"),
        ("structured_outputs", {"choice": ["a"], "json": {}}, "exactly one"),
        ("structured_outputs", {"guided_json": {}}, "unknown field 'guided_json'"),
        ("structured_outputs", {"choice": "a"}, "must be a list"),
    ],
)
def test_refused(field: str, value: dict[str, Any], why: str) -> None:
    with pytest.raises((APIError, RequestError), match=why) as caught:
        of(**{field: value})
    assert caught.value.param == field


def test_one_of_the_two() -> None:
    with pytest.raises(APIError, match="exclude each other"):
        of(response_format={"type": "json_object"}, structured_outputs={"regex": "a"})


def test_not_with_beams() -> None:
    request = CompletionRequest(
        prompt="", use_beam_search=True, response_format={"type": "json_object"}
    )
    with pytest.raises(APIError, match="do not go with use_beam_search"):
        beam_search_params(request, max_tokens=4)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["chat", "completion"])
async def test_a_grammar_that_fails_is_a_400(route: str, stream: bool) -> None:
    """Before anything is streamed."""
    async with serving() as s:
        reply = await (s.chat if route == "chat" else s.completion)(
            "FAIL: grammar", stream=stream, structured_outputs={"regex": "("}
        )
        assert reply.status == 400
        assert reply.json["error"]["param"] == "structured_outputs"
