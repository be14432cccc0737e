"""Users' reports against engines like this one, as small inputs with the right answer: structured
output. A test's number is the case's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from octavo.contracts.messages import CompletionOutput
from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.structured_outputs import StructuredOutputsParams
from octavo.entrypoints.llm import LLM
from octavo.errors import RequestError
from tests.entrypoints.openai.live import Live, live

pytestmark = [pytest.mark.model, pytest.mark.slow]

CONSTANT = "\n" + 31 * " "
SCHEMAS: dict[str, Any] = {
    "anything": {},
    "true": True,
    "empty object": {"type": "object", "properties": {}, "additionalProperties": False},
    "empty array": {"type": "array", "maxItems": 0},
    "two strings": {
        "type": "array",
        "items": {"type": "string", "maxLength": 8},
        "minItems": 2,
        "maxItems": 2,
    },
    "long string": {"type": "string", "maxLength": 5000},
    "white constant": {"const": CONSTANT},
    "escapes": {"enum": ['a"b\\c', "日本", "π", "\t", "🌶️"]},
    "other key": {
        "type": "object",
        "properties": {"é": {"type": "integer", "maximum": 9, "minimum": 0}},
        "required": ["é"],
        "additionalProperties": False,
    },
    "nested pattern": {
        "type": "object",
        "properties": {
            "in": {
                "type": "object",
                "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}},
                "required": ["name"],
                "additionalProperties": False,
            }
        },
        "required": ["in"],
        "additionalProperties": False,
    },
}
OPEN_ENDED = {"anything", "true", "long string", "two strings", "nested pattern"}
"""May be cut by max_tokens."""


def answers(llm: LLM, structured: dict[str, Any], seeds: range, **values: Any) -> Iterator[Any]:
    """One completion per seed."""
    params = [
        SamplingParams(
            temperature=1.0,
            max_tokens=64,
            seed=seed,
            structured_outputs=StructuredOutputsParams(**structured),
            **values,
        )
        for seed in seeds
    ]
    prompts = ["An answer in JSON: "] * len(params)
    for output in llm.generate(prompts, params, use_tqdm=False):
        yield output.outputs[0]


@pytest.mark.parametrize("name", SCHEMAS)
def test_case_20_degenerate_and_escaped_schemas(smollm2: LLM, name: str) -> None:
    schema = SCHEMAS[name]
    finished = 0
    for answer in answers(smollm2, {"json": json.dumps(schema)}, range(10)):
        if answer.finish_reason != "stop":
            assert name in OPEN_ENDED
            continue
        finished += 1
        jsonschema.validate(json.loads(answer.text), schema)
    assert finished or name in OPEN_ENDED
    assert finished == 10 or name in OPEN_ENDED


def test_case_20_exactly_what_is_said(smollm2: LLM) -> None:
    (answer,) = answers(smollm2, {"json": SCHEMAS["empty object"]}, range(1))
    assert json.loads(answer.text) == {}
    (answer,) = answers(smollm2, {"json": SCHEMAS["white constant"]}, range(1))
    assert json.loads(answer.text) == CONSTANT
    said = {json.loads(a.text) for a in answers(smollm2, {"json": SCHEMAS["escapes"]}, range(10))}
    assert said <= set(SCHEMAS["escapes"]["enum"])
    assert len(said) > 1


REGEXES = ["(", r"a(?=b)", r"\bfoo\b", r"\1(a)", "foo**", "^(|.*)$", "[\x00-\u2e7f]+"]
WORK = {"^(|.*)$", "[\x00-\u2e7f]+"}
"""These must."""
MEANS = {"foo**": "foo*"}
"""Python has no repeats of repeats."""
BAD_SCHEMAS: dict[str, Any] = {
    "no alternative": {"anyOf": []},
    "nothing but itself": {"$ref": "#"},
    "not anything": {"not": {}},
    "one of two": {"oneOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
    "an impossible key": {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "a pattern over a property": {
        "type": "object",
        "properties": {"ab": {"type": "integer", "maximum": 9, "minimum": 0}},
        "patternProperties": {"^a": {"type": "string", "maxLength": 3}},
        "required": ["ab"],
        "additionalProperties": False,
    },
}
RUBBISH = ["start: (", "root ::= (", "%%%", 'start: "a" start: "b"', "root ::= undefined"]


def refused_or_right(llm: LLM, structured: dict[str, Any], is_right: Any) -> bool:
    """Whether a request with this is answered; what it says must be right then."""
    params = SamplingParams(
        temperature=1.0,
        seed=0,
        max_tokens=40,
        structured_outputs=StructuredOutputsParams(**structured),
    )
    beside = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    try:
        outputs = llm.generate(["Say: ", "Once"], [params, beside], use_tqdm=False)
    except RequestError:
        return False
    answer, plain = (output.outputs[0] for output in outputs)
    assert len(plain.token_ids) == 12
    if answer.finish_reason == "stop":
        assert is_right(answer.text), answer.text
    return answer.finish_reason in ("stop", "length")


@pytest.mark.parametrize("regex", REGEXES, ids=range(len(REGEXES)))
def test_case_21_regexes_fail_closed(smollm2: LLM, regex: str) -> None:
    pattern = MEANS.get(regex, regex)
    answered = refused_or_right(smollm2, {"regex": regex}, lambda t: re.fullmatch(pattern, t))
    assert answered or regex not in WORK


@pytest.mark.parametrize("name", BAD_SCHEMAS)
def test_case_21_schemas_fail_closed(smollm2: LLM, name: str) -> None:
    schema = BAD_SCHEMAS[name]

    def is_right(text: str) -> bool:
        jsonschema.validate(json.loads(text), schema)
        return True

    refused_or_right(smollm2, {"json": schema}, is_right)


@pytest.mark.parametrize("grammar", RUBBISH, ids=range(len(RUBBISH)))
def test_case_21_no_grammar(smollm2: LLM, grammar: str) -> None:
    assert not refused_or_right(smollm2, {"grammar": grammar}, lambda _: False)


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[Live]:
    with live() as server:
        yield server


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("structured", [{"regex": "("}, {"regex": "a(?=b)"}, {"grammar": "%%%"}])
def test_case_21_an_error_comes_before_any_event(
    server: Live, structured: dict[str, Any], stream: bool
) -> None:
    reply = server.complete("Say: ", structured_outputs=structured, stream=stream, max_tokens=4)
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    assert reply.error["param"] == "structured_outputs"
    assert server.complete("Once", max_tokens=2).status == 200


NUMBER = {
    "type": "object",
    "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["number"],
    "additionalProperties": False,
}
WHITE = {198: 100.0, 1116: 100.0, 256: 100.0, 216: 100.0}
"""Tokens of new lines and spaces, made as likely as can be."""


def _white_numbers(llm: LLM, **options: Any) -> CompletionOutput:
    structured = StructuredOutputsParams(json=NUMBER, **options)
    params = SamplingParams(
        temperature=0, max_tokens=64, logit_bias=WHITE, structured_outputs=structured
    )
    (output,) = llm.generate("A number in JSON: ", params, use_tqdm=False)
    return output.outputs[0]


def test_case_22_white_space_ends(smollm2: LLM) -> None:
    answer = _white_numbers(smollm2)
    assert answer.finish_reason == "stop"
    jsonschema.validate(json.loads(answer.text), NUMBER)
    assert max(map(len, re.findall(r"\s+", answer.text))) <= 16
    compact = _white_numbers(smollm2, disable_any_whitespace=True)
    assert compact.finish_reason == "stop"
    assert not re.search(r"\s", compact.text)


def test_reasoning_is_free_and_what_follows_is_not(smollm2: LLM) -> None:
    """vllm#12619: the grammar binds what is behind the reasoning's end mark."""
    params = SamplingParams(
        temperature=0,
        max_tokens=64,
        thinking_token_budget=8,
        structured_outputs=StructuredOutputsParams(json=NUMBER, reasoning_end_str="</think>"),
    )
    (output,) = smollm2.generate("Name a number.\n<think>", params, use_tqdm=False)
    thought, end, answer = output.outputs[0].text.partition("</think>")
    assert end
    assert thought
    assert not thought.lstrip().startswith("{")
    jsonschema.validate(json.loads(answer), NUMBER)
