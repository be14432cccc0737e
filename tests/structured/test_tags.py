"""Structural tags of the newer kind. The older one is in test_sources.py."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.contracts.structured_outputs import StructuredOutputsParams
from octavo.errors import RequestError
from octavo.structured.sources import grammar_source
from tests.structured.lab import accepts

ONE = {"type": "json_schema", "json_schema": {"const": 1}}
TEXT = {"type": "any_text"}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: Any = ONE, end: Any = ">") -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def params(form: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(structural_tag={"type": "structural_tag", "format": form})


TRIGGERED = {"type": "triggered_tags", "triggers": ["<f"], "tags": [tag("<f="), tag("<fg=")]}
SEPARATED = {"type": "tags_with_separator", "separator": ";", "tags": [tag("<a="), tag("<b=")]}


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (const('a"\n'), ['a"\n'], ["a", ""]),
        (ONE, ["1"], ["2", ""]),
        (TEXT, ["", "any\nthing"], []),
        (tag("<", TEXT, "</t>"), ["<a < b</t>", "<</t>"], ["<a", "a</t>", "<a</t>b"]),
        (tag("<", ONE, [">", "/>"]), ["<1>", "<1/>"], ["<1", "<2>"]),
        (tag("<", TEXT, ""), ["<", "<ab"], ["ab"]),
        ({"type": "sequence", "elements": [const("a"), ONE, TEXT]}, ["a1", "a1x"], ["a", "1"]),
        ({"type": "or", "elements": [const("a"), tag("<")]}, ["a", "<1>"], ["a<1>", "b"]),
        (TRIGGERED, ["", "a <f=1> b <fg=1>", "<f=1><f=1>"], ["<f", "<f=2>", "a <fh=1>"]),
        ({**TRIGGERED, "at_least_one": True}, ["a <f=1>", "<f=1> b"], ["", "a"]),
        ({**TRIGGERED, "stop_after_first": True}, ["a", "a <f=1>"], ["<f=1>b"]),
        ({**TRIGGERED, "at_least_one": True, "stop_after_first": True}, ["a<f=1>"], ["a", ""]),
        (SEPARATED, ["", "<a=1>", "<a=1>;<b=1>;<a=1>"], ["<a=1><b=1>", "a", "<a=1>;"]),
        ({**SEPARATED, "at_least_one": True}, ["<a=1>", "<b=1>;<b=1>"], [""]),
        ({**SEPARATED, "stop_after_first": True}, ["", "<a=1>"], ["<a=1>;<b=1>"]),
        ({**SEPARATED, "separator": ""}, ["<a=1><b=1>"], ["<a=1>;<b=1>"]),
        (
            {"type": "sequence", "elements": [tag("<think>", TEXT, "</think>"), TRIGGERED]},
            ["<think>a <f b</think> c <f=1>", "<think></think>"],
            ["a", "<think>a"],
        ),
    ],
)
def test_formats(form: Any, good: list[str], bad: list[str]) -> None:
    """vllm#55152, OpenVINO model_server#3922."""
    for text in good:
        assert accepts(params(form), text), text
    for text in bad:
        assert not accepts(params(form), text), text


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"type": "qwen_xml_parameter"}, "has the format 'qwen_xml_parameter', which is none of"),
        ("text", "has the format 'text'"),
        ({"type": ["tag"]}, "has the format"),
        ({"type": "sequence", "elements": [TEXT, ONE]}, "any_text in front of something"),
        ({"type": "sequence", "elements": [TRIGGERED, ONE]}, "they can only come last"),
        ({"type": "sequence", "elements": []}, r"has elements=\[\]"),
        ({"type": "or", "elements": [5]}, "has elements="),
        (tag(""), "has begin=''"),
        (tag("<", ONE, None), r"from '<' to \[None\]"),
        ({"type": "json_schema", "json_schema": []}, r"has the schema \[\]"),
        ({**TRIGGERED, "triggers": [""]}, "has triggers="),
        ({**TRIGGERED, "triggers": ["<g"]}, "begins with '<f=', no trigger"),
        ({"type": "const_string"}, "has value=None"),
    ],
)
def test_malformed(form: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        grammar_source(params(form))
    assert caught.value.param == "structured_outputs"
