"""`response_format` and `structured_outputs`: what they become, and what is wrong with others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.engine import input_processor
from octavo.entrypoints.openai.beams import beam_search_params
from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.protocol import CompletionRequest
from octavo.entrypoints.openai.structured import structured_outputs
from octavo.errors import RequestError
from octavo.structured.sources import grammar_source
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
        ({"response_format": {"type": "json_object", "json_schema": None}}, ("json_object", True)),
        ({"response_format": {"type": "text", "schema": None}}, None),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            ("json", json.dumps(SCHEMA)),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": None, "strict": None, "schema": {}},
                }
            },
            ("json", "{}"),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"strict": False, "schema": {"x-guidance": {"a": 1}}},
                }
            },
            ("json", '{"x-guidance": {"lenient": true, "a": 1}}'),
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
        ("response_format", {"type": "text", "schema": {}}, "must have type"),
        ("response_format", {"type": "json_schema", "json_schema": {}}, "must have a schema"),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}},
            r"strict \(true or false\)",
        ),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"schema": None}},
            "must have a schema",
        ),
        (
            "structured_outputs",
            {"json": {"name": "n", "schema": {}}},
            "json has the fields name, schema",
        ),
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


SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
FUNCTION = {"type": "function", "function": {"name": "f"}}
GUIDANCE = {"x-guidance": 1}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("completion", {"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ("completion", {"response_format": SCHEMA_FORMAT}, "response_format"),
        ("chat", {"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ("chat", {"response_format": SCHEMA_FORMAT}, "response_format"),
        ("chat", {"tools": [FUNCTION], "tool_choice": "required"}, "tools"),
        ("chat", {"tools": [FUNCTION], "tool_choice": FUNCTION}, "tools"),
    ],
    ids=str,
)
async def test_a_grammar_that_fails_is_a_400(
    route: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    """Before anything is streamed; of the field that the client sent."""
    async with serving() as s:
        reply = await (s.chat if route == "chat" else s.completion)(
            "FAIL: grammar", stream=stream, **fields
        )
        assert reply.status == 400
        assert reply.error["param"] == param


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"structured_outputs": {"json": GUIDANCE}}, "structured_outputs"),
        (
            "/v1/completions",
            {"response_format": {**SCHEMA_FORMAT, "json_schema": {"schema": GUIDANCE}}},
            "response_format",
        ),
        (
            "/v1/responses",
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": GUIDANCE}}},
            "text",
        ),
        ("/v1/responses", {"input": "FAIL:", "text": {"format": {"type": "json_object"}}}, "text"),
        (
            "/inference/v1/generate",
            {"token_ids": [1], "sampling_params": {"structured_outputs": {"json": GUIDANCE}}},
            "structured_outputs",
        ),
        (
            "/v1/completions",
            {"structured_outputs": {"json": '{"const": "\\ud800"}'}},
            "structured_outputs",
        ),
    ],
    ids=str,
)
async def test_what_is_wrong_with_a_grammar_is_of_its_field(
    path: str, body: dict[str, Any], param: str
) -> None:
    base = {"/v1/completions": {"prompt": "a"}, "/v1/responses": {"input": "a"}}.get(path, {})
    async with serving() as s:
        reply = await s.post(path, {**base, **body})
        assert (reply.status, reply.error["param"]) == (400, param), reply.body


async def test_a_schema_is_written_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all prompts and completions of a request, checking and running it together."""
    written: list[Any] = []

    def counted(params: Any, *options: Any) -> Any:
        written.append(params)
        return grammar_source(params, *options)

    monkeypatch.setattr(input_processor, "grammar_source", counted)
    async with serving() as s:
        options = {"json": {"type": "object"}}
        reply = await s.completion(["SAY:a", "SAY:b"], n=2, structured_outputs=options)
        assert reply.status == 200
        assert len(reply.json["choices"]) == 4
    assert len(written) == 1
