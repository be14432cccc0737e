"""Grammars with real models: what ends by itself is valid, by checkers that nobody here wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import lark
import pytest

from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.structured_outputs import StructuredOutputsParams
from octavo.entrypoints.llm import LLM

pytestmark = pytest.mark.model

WORD: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 12}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 99}


def record(*names: str, **properties: Any) -> dict[str, Any]:
    """An object with these properties, the named ones of which are required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(names or properties),
        "additionalProperties": False,
    }


def listing(items: Any, low: int, high: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


TREE = record("name", name=WORD, children=listing({"$ref": "#/$defs/tree"}, 0, 1))
SCHEMAS: list[dict[str, Any]] = [
    record(name=WORD, age=COUNT),
    record("name", name=WORD, nick=WORD, age=COUNT),
    record(point=record(x={"type": "number", "minimum": -1, "maximum": 1}, y=COUNT)),
    record(a=record(b=record(c=record(d=record(e=WORD))))),
    {"enum": ["red", "green", "blue"]},
    {"enum": ['a"b\\c', "日本", "π", "\t", "🌶️", 5, None, [1], {"k": "v"}]},
    {"const": {"schlüssel": ["wert", 1.5, True]}},
    record(é=WORD, 日本={"enum": ["東京", "大阪"]}),
    listing(COUNT, 2, 4),
    listing({"enum": ["a", "b"]}, 3, 3),
    {"type": "array", "prefixItems": [WORD, COUNT], "items": False, "minItems": 2},
    listing(listing(COUNT, 1, 2), 1, 3),
    {"type": "array", "maxItems": 0},
    {"type": "integer", "exclusiveMinimum": -5, "maximum": 1000},
    {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 500},
    {"type": "number", "minimum": 0.25, "exclusiveMaximum": 3.5},
    {"type": ["integer", "null", "boolean"], "minimum": -9, "maximum": 9},
    {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"},
    {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "minLength": 4, "maxLength": 24},
    {"anyOf": [WORD, COUNT, {"type": "null"}]},
    {"anyOf": [record(kind={"const": "a"}, a=COUNT), record(kind={"const": "b"}, b=WORD)]},
    {"oneOf": [{"type": "boolean"}, record(ok={"type": "boolean"})]},
    {"allOf": [record(a=WORD) | {"additionalProperties": True}, {"properties": {"b": COUNT}}]}
    | {"additionalProperties": False, "properties": {"a": {}, "b": {}}},
    {"$defs": {"item": record(id=COUNT, tag=WORD)}} | listing({"$ref": "#/$defs/item"}, 1, 2),
    {"$defs": {"tree": TREE}, "$ref": "#/$defs/tree"},
    {"type": "object", "additionalProperties": COUNT, "minProperties": 1, "maxProperties": 2},
    {"type": "object", "properties": {}, "additionalProperties": False},
]
PROMPT = "Question: describe one example as JSON.\nAnswer: "
REGEXES = [
    r"[a-z]{2,8}@[a-z]{2,8}\.(com|org)",
    r"\(\d{3}\) \d{3}-\d{4}",
    r"(ha|ho){1,5}!",
    r"[^aeiou\n]{3,10}",
    r"#[0-9a-f]{6}",
    r"(Mon|Tue|Wed)day, [1-9][0-9]? (May|June)",
]
GRAMMARS = [
    'start: sum\nsum: NUM ("+" NUM)~0..3\nNUM: /[0-9]{1,3}/',
    'start: "(" (start | "x") ")"',
    'start: "if " NAME " then " NAME (" else " NAME)?\nNAME: /[a-z]{1,6}/',
]
"""In what is common to Lark's own language and llguidance's."""


@pytest.fixture(scope="module")
def model(smollm2_path: object) -> Iterator[LLM]:
    with LLM(str(smollm2_path), max_model_len=1024, max_num_seqs=32, num_threads=1) as llm:
        yield llm


def generated(
    llm: LLM, asked: list[tuple[StructuredOutputsParams, int]], max_tokens: int = 512
) -> list[str | None]:
    """A text per (what it must be, seed); None where the length cut it."""
    params = [
        SamplingParams(seed=seed, max_tokens=max_tokens, structured_outputs=structured)
        for structured, seed in asked
    ]
    outputs = [o.outputs[0] for o in llm.generate([PROMPT] * len(params), params, use_tqdm=False)]
    assert {o.finish_reason for o in outputs} <= {"stop", "length"}, [o.error for o in outputs]
    return [o.text if o.finish_reason == "stop" else None for o in outputs]


def check_schemas(
    llm: LLM, schemas: list[dict[str, Any]], seeds: range, max_tokens: int = 512
) -> float:
    """Every text that ended is valid. Returns the share of those that did not end."""
    asked = [(schema, seed) for schema in schemas for seed in seeds]
    texts = generated(
        llm, [(StructuredOutputsParams(json=s), seed) for s, seed in asked], max_tokens
    )
    for (schema, seed), text in zip(asked, texts):
        if text is not None:
            validator = jsonschema.Draft202012Validator(
                schema, format_checker=jsonschema.FormatChecker()
            )
            errors = [e.message for e in validator.iter_errors(json.loads(text))]
            assert not errors, f"{json.dumps(schema)}, seed {seed}: {text!r}: {errors}"
    return texts.count(None) / len(texts)


def test_twenty(model: LLM) -> None:
    assert check_schemas(model, SCHEMAS[:20], range(1), max_tokens=96) <= 0.1


@pytest.mark.slow
def test_three_hundred(model: LLM) -> None:
    assert check_schemas(model, SCHEMAS, range(100, 110)) <= 0.05


def test_regexes(model: LLM) -> None:
    asked = [(pattern, seed) for pattern in REGEXES for seed in range(3)]
    texts = generated(model, [(StructuredOutputsParams(regex=p), seed) for p, seed in asked])
    for (pattern, _), text in zip(asked, texts):
        assert text is not None
        assert re.fullmatch(pattern, text), f"{pattern}: {text!r}"


def test_grammars(model: LLM) -> None:
    asked = [(grammar, seed) for grammar in GRAMMARS for seed in range(3)]
    texts = generated(
        model,
        [
            (StructuredOutputsParams(grammar=grammar.replace("~0..3", "{0,3}")), seed)
            for grammar, seed in asked
        ],
    )
    for (grammar, _), text in zip(asked, texts):
        if text is not None:
            lark.Lark(grammar).parse(text)
    assert texts.count(None) * 4 <= len(texts), "too many were cut by length to say anything"


@pytest.mark.parametrize("bias", [["198", "1116", "256", "216"], ["198"], ["216", "256"]])
def test_white_space_ends_however_much_it_is_wanted(model: LLM, bias: list[str]) -> None:
    """vllm-project/vllm#44619: new lines, spaces and runs of them have a bias of 100."""
    schema = record(a={"type": "integer", "maximum": 99})
    params = SamplingParams(
        temperature=0.0,
        max_tokens=64,
        logit_bias=dict.fromkeys(map(int, bias), 100.0),
        structured_outputs=StructuredOutputsParams(json=schema),
    )
    (output,) = model.generate(PROMPT, params, use_tqdm=False)
    assert output.outputs[0].finish_reason == "stop"
    jsonschema.validate(json.loads(output.outputs[0].text), schema)
    assert max(map(len, re.findall(r"\s+", output.outputs[0].text))) <= 16


LITERAL = "Zoë → 你好, 👨‍👩‍👧‍👦 🇫🇷 e\u0301 🌶️ end"


def test_a_literal_cut_anywhere(model: LLM) -> None:
    """Is a beginning of it, without half characters."""
    params = [
        SamplingParams(max_tokens=n, structured_outputs=StructuredOutputsParams(choice=[LITERAL]))
        for n in [*range(1, 40, 3), 60]
    ]
    outputs = [o.outputs[0] for o in model.generate([PROMPT] * len(params), params, use_tqdm=False)]
    assert outputs[-1].text == LITERAL
    for asked, output in zip(params, outputs):
        assert asked.max_tokens is not None
        assert LITERAL.startswith(output.text)
        assert len(output.token_ids) == min(asked.max_tokens, len(outputs[-1].token_ids))


def test_a_vocabulary_of_sentencepiece(gemma3_path: object) -> None:
    texts = [LITERAL, "  two spaces", "\n\nlines\t", "<bos>", "<0x41>"]
    with LLM(str(gemma3_path), max_model_len=768, max_num_seqs=8, num_threads=1) as llm:
        asked = [(StructuredOutputsParams(choice=[text]), 0) for text in texts]
        asked.append((StructuredOutputsParams(json=SCHEMAS[0]), 5))
        *exact, answer = generated(llm, asked)
    assert exact == texts
    assert answer is not None
    jsonschema.validate(json.loads(answer), SCHEMAS[0])
