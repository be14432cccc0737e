"""What a request asks for, as a grammar: which texts it takes and which it does not."""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.structured_outputs import MAX_CHOICES
from octavo.contracts.structured_outputs import StructuredOutputsParams as Params
from octavo.errors import RequestError
from octavo.structured.backend import GrammarError
from octavo.structured.sources import grammar_source
from tests.engine.fakes import IM_END
from tests.structured.lab import accepts, follows, matcher_of

ONE_INTEGER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class TestJson:
    @pytest.mark.parametrize(
        ("schema", "good", "bad"),
        [
            ({}, [1, "a", {"b": None}, [[]]], []),
            (True, [1, {"b": None}], []),
            ({"type": "object", "properties": {}, "additionalProperties": False}, [{}], [{"a": 1}]),
            ({"type": "array", "maxItems": 0}, [[]], [[1]]),
            ({"const": "\n" + " " * 31}, ["\n" + " " * 31], ["\n"]),
            ({"enum": ['a"b\\c', "日本", "π", "\t", "🌶️"]}, ['a"b\\c', "日本", "\t", "🌶️"], ["a"]),
            ({"type": "object", "properties": {"é": {"const": 1}}}, [{"é": 1}, {}], [{"é": 2}]),
            ({"type": "integer", "minimum": -3, "exclusiveMaximum": 12}, [-3, 0, 11], [-4, 12]),
            ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, ["abc"], ["abcd", "a1"]),
            (
                {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#"}}}},
                [[], [[], [[]]]],
                [[1], 1],
            ),
            ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, [None, True], [0, "null"]),
        ],
    )  # fmt: skip
    def test_values(self, schema: Any, good: list[Any], bad: list[Any]) -> None:
        params = Params(json=json.dumps(schema))
        for value in (*good, *bad):
            text = json.dumps(value, ensure_ascii=False)
            is_valid = jsonschema.Draft202012Validator(schema).is_valid(value)
            assert is_valid == (value in good), "the table"
            assert accepts(params, text) == is_valid, text

    def test_white_space(self) -> None:
        texts = [
            '{"a":1}',
            '{"a": 1}',
            '{\n    "a": 1\r\n}',
            "{\n" + " " * 15 + '"a":1}',
            "{\n" + " " * 16 + '"a":1}',
            '{\n\n"a":1}',
            '{  "a":1}',
        ]
        for fields, expected in (
            ({}, "yyyynnn"),
            ({"disable_any_whitespace": True}, "ynnnnnn"),
            ({"whitespace_pattern": " ?"}, "yynnnnn"),
            ({"whitespace_pattern": r"\s+"}, "yyyyyyy"),
            ({"whitespace_pattern": r"\n{2}"}, "ynnnnyn"),
        ):
            params = Params(json=ONE_INTEGER, **fields)
            found = "".join("y" if accepts(params, text) else "n" for text in texts)
            assert found == expected, fields

    def test_options_in_the_schema(self) -> None:
        schema = {**ONE_INTEGER, "x-guidance": {"whitespace_pattern": "\\t"}}
        assert accepts(Params(json=schema), '{\t"a":1}')
        assert not accepts(Params(json=schema), '{ "a":1}')

    def test_any_object(self) -> None:
        assert accepts(Params(json_object=True), '{"a": [1, null]}')
        assert not accepts(Params(json_object=True), "[1]")

    def test_closed_objects(self) -> None:
        inner = {"type": "object", "properties": {"properties": {"type": "integer"}}}
        schema = {"type": "object", "properties": {"x": inner}, "anyOf": [inner, {}]}
        schema.pop("anyOf")
        open_, closed = Params(json=schema), Params(json=schema, disable_additional_properties=True)
        for text, is_closed in (
            ('{"x": {"properties": 1}}', True),
            ('{"x": {"properties": 1, "other": 2}}', False),
            ('{"other": 2}', False),
        ):
            assert accepts(open_, text)
            assert accepts(closed, text) == is_closed
        free = {"type": "object", "properties": {}, "additionalProperties": True}
        assert accepts(Params(json=free, disable_additional_properties=True), '{"a": 1}')


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^(|.*)$", "hello"),
        ("^(|.*)$", ""),
        ("^a+$", "aaa"),
        (r"[\x00-\u2e7f]+", "héllo→"),
        (r"\d{2,3}-\w+", "123-ab_9"),
        ("a|bc", "bc"),
        ("a|bc", "abc"),
        (".", "\n"),
        ("(?i)ab", "aB"),
        ("[a-c]{1,3}", "abca"),
        (r"\.\*\\", r".*\\"),
        ("é+", "éé"),
    ],
)
def test_regex_is_a_full_match(pattern: str, text: str) -> None:
    # re has no \u in a class of characters over the BMP; Rust's and Python's agree on these.
    assert accepts(Params(regex=pattern), text) == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        ("(", "unclosed group"),
        ("a(?=b)", "look-around"),
        (r"\bfoo\b", "lookarounds not supported"),
        (r"\1(a)", "backreferences are not supported"),
        ("a$b", "lookarounds not supported"),
    ],
)
def test_regex_that_cannot_be(pattern: str, construct: str) -> None:
    with pytest.raises(GrammarError, match=construct):
        accepts(Params(regex=pattern), "a")


@given(choice=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=5), other=st.text())
def test_choice(choice: list[str], other: str) -> None:
    params = Params(choice=choice)
    assert all(accepts(params, text) for text in choice)
    assert accepts(params, other) == (other in choice)


def test_as_many_choices_as_may_be() -> None:
    texts = [f"item {i}" for i in range(MAX_CHOICES)]
    matcher = matcher_of(grammar_source(Params(choice=texts)))
    matcher.compute_bitmask()
    assert follows(matcher, texts[-1].encode())
    assert matcher.is_accepting()


def test_guidance_of_a_schema_is_an_object() -> None:
    with pytest.raises(RequestError, match="x-guidance=1 of a schema must be an object"):
        grammar_source(Params(json={**ONE_INTEGER, "x-guidance": 1}))


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('start: "a" start "b" | "c"', ["c", "aacbb"], ["", "acbb"]),
        ("start: NUM (OP NUM)*\nNUM: /[0-9]+/\nOP: /[-+*\\/]/", ["1+22", "3"], ["+", "1+"]),
        ('root ::= "yes" | "no" digits\ndigits ::= [0-9]+', ["yes", "no12"], ["no", "y"]),
    ],
)
def test_grammar(grammar: str, good: list[str], bad: list[str]) -> None:
    params = Params(grammar=grammar)
    assert all(accepts(params, text) for text in good)
    assert not any(accepts(params, text) for text in bad)


@pytest.mark.parametrize("grammar", ["rubbish ((", "root ::= (", "start: missing", 'a: "b"'])
def test_grammar_that_is_none(grammar: str) -> None:
    with pytest.raises(GrammarError, match=r"error|Expected|rule|unknown"):
        accepts(Params(grammar=grammar), "a")


class TestStructuralTag:
    STRUCTURE: ClassVar[dict[str, Any]] = {"begin": "<f=a>", "schema": ONE_INTEGER, "end": "</f>"}

    def tag(self, **changes: Any) -> dict[str, Any]:
        return {"structures": [self.STRUCTURE], "triggers": ["<f"], **changes}

    def test_texts(self) -> None:
        other = {"begin": "<g>", "schema": {"enum": ["x"]}, "end": ""}
        params = Params(
            structural_tag=self.tag(structures=[self.STRUCTURE, other], triggers=["<f", "<g>"])
        )
        for text in ("", "free\ntext", 'so <f=a>{"a": 1}</f> then', '<g>"x"<f=a>{"a":2}</f>'):
            assert accepts(params, text), text
        for text in ("<f=b>", '<f=a>{"b": 1}</f>', '<f=a>{"a": 1}</g>', "x <f"):
            assert not accepts(params, text), text

    @pytest.mark.parametrize(
        "changes",
        [
            {"structures": []},
            {"structures": "x"},
            {"structures": [{"begin": "<f"}]},
            {"structures": [{**STRUCTURE, "schema": 5}]},
            {"structures": [{**STRUCTURE, "end": None}]},
            {"triggers": [""]},
            {"triggers": ["<g"]},
            {"type": "other"},
            {"format": {}},
        ],
    )
    def test_malformed(self, changes: dict[str, Any]) -> None:
        with pytest.raises(RequestError, match="structural_tag has") as caught:
            grammar_source(Params(structural_tag=self.tag(**changes)))
        assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize(
    "wanted",
    [
        {"json": {"const": 7}},
        {"regex": "7"},
        {"choice": ["7"]},
        {"grammar": 'root ::= "7"'},
        {"grammar": 'start: "7"'},
        {
            "structural_tag": {
                "structures": [{"begin": "[", "schema": {"const": 7}, "end": "]"}],
                "triggers": ["["],
            }
        },
    ],
)
def test_reasoning_comes_first(wanted: dict[str, Any]) -> None:
    """vllm#12619: a grammar binds what is behind the reasoning."""
    is_free = "structural_tag" in wanted
    body = "[7]" if is_free else "7"
    opened = Params(**wanted, reasoning_end_str="</think>")
    for thought in ("", "3 + 4 < 8, </thin, \n{7}"):
        for gap in ("", "\n\n"):
            assert accepts(opened, f"{thought}</think>{gap}{body}")
    assert not accepts(opened, "3 + 4")
    assert accepts(opened, f"{body}</think>") == is_free
    maybe = Params(**wanted, reasoning_end_str="</think>", reasoning_start_str="<think>")
    assert accepts(maybe, f"<think>hm</think>{body}")
    assert accepts(maybe, body)
    assert accepts(maybe, f"hm</think>{body}") == is_free


def test_marks_that_are_special_tokens() -> None:
    params = Params(regex="7", reasoning_end_str="<|im_end|>")
    source = grammar_source(params, lambda mark: f"<[{IM_END}]>")
    matcher = matcher_of(source)
    assert follows(matcher, [*b"hm <|im_end|> hm", IM_END, *b"7"])
    assert matcher.is_accepting()


def test_marks_must_make_sense() -> None:
    with pytest.raises(RequestError, match="needs reasoning_end_str"):
        Params(regex="7", reasoning_start_str="<think>")
    with pytest.raises(RequestError, match="not empty"):
        Params(regex="7", reasoning_end_str="")
