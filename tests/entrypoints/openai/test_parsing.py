from __future__ import annotations

import json
import re
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.parsing import parse_body, parse_object, parse_query
from octavo.entrypoints.openai.protocol import CHAT_UNSUPPORTED, ChatCompletionRequest


class Small(msgspec.Struct, kw_only=True):
    a: int | None = None
    b: str | None = None
    c: list[int] | None = None


UNSUPPORTED = {"d": (False, {"x": 1})}


def test_good() -> None:
    assert parse_body(b'{"a": 1, "b": null, "d": false}', Small, UNSUPPORTED) == Small(a=1)
    assert parse_body(b'{"d": {"x": 1}, "z": null}', Small, UNSUPPORTED) == Small()
    for kind in (bytes, bytearray):  # with a byte order mark, as .NET writes it
        assert parse_body(kind(b'\xef\xbb\xbf{"a": 1}'), Small, UNSUPPORTED) == Small(a=1)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b'{"a": "1"}', "a", "a: Expected `int`, got `str`"),
        (b'{"c": [1, "x"]}', "c", "c[1]: Expected `int`"),
        (b'{"d": true}', "d", "not supported"),
        (b'{"d": 0}', "d", "not supported"),
        (b'{"e": 1}', "e", "unknown field 'e'"),
        (b'{"guided_json": {}}', "guided_json", "it is structured_outputs.json now"),
        (b'{"extra_body": {"a": 1}}', "extra_body", "its fields stand beside the others"),
        (b'{"a": 1e400}', None, "out of range"),
        (b"[1]", None, "object"),
        (b"{", None, "not valid JSON"),
        (b"\xef\xbb\xbf{", None, "not valid JSON"),
        (b"\xef\xbb\xbf", None, "not valid JSON"),
        (rb'{"a": "\ud83d"}', None, r"\ud83d is half a surrogate pair"),
        (rb'{"a": "\ud83d\ud83d\ude00"}', None, r"\ud83d is half a surrogate pair"),
        (rb'{"a": "\ud83d\ude00\\ud83d", 1}', None, "keys must be strings"),
    ],
)
def test_bad(body: bytes, param: str | None, words: str) -> None:
    with pytest.raises(APIError) as caught:
        parse_body(body, Small, UNSUPPORTED)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert words in caught.value.message


def test_of_a_key_that_comes_twice_the_last_one_counts() -> None:
    assert parse_body(b'{"a": 1, "a": 2}', Small, UNSUPPORTED).a == 2
    assert parse_body(b'{"a": 1, "a": null}', Small, UNSUPPORTED).a is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
fields = st.sampled_from([*ChatCompletionRequest.__struct_fields__, *CHAT_UNSUPPORTED, "zzz"])


@given(st.dictionaries(fields, json_values, max_size=6))
def test_any_json_is_a_request_or_a_400(body: dict[str, object]) -> None:
    try:
        request = parse_body(json.dumps(body).encode(), ChatCompletionRequest, CHAT_UNSUPPORTED)
    except APIError as error:
        assert error.status == 400
        msgspec.json.encode(error.body)
    else:
        assert isinstance(request.messages, list)


@given(st.binary(max_size=64))
def test_any_bytes(body: bytes) -> None:
    try:
        assert isinstance(parse_object(body), dict)
    except APIError as error:
        assert error.status == 400


@pytest.mark.parametrize("unit", [b"[],", b"{},", b'"a",', b"1,"])
def test_too_many_values(unit: bytes) -> None:
    """What decoding costs is bounded by values, not only by bytes: it stops every stream."""
    body = b'{"c":[' + unit * (2**23 // len(unit)) + b"1]}"
    with pytest.raises(APIError, match="too many JSON values") as raised:
        parse_body(body, Small, UNSUPPORTED)
    assert raised.value.status == 413


def test_many_fields() -> None:
    body = b"{" + b",".join(b'"f%d":1' % i for i in range(300_000)) + b"}"
    with pytest.raises(APIError, match="too many JSON values"):
        parse_body(body, Small, UNSUPPORTED)
    values = list(range(300_000))
    body = json.dumps({"c": values}).encode()  # a batch of prompts may be so long
    assert parse_body(body, Small, UNSUPPORTED).c == values


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop", ["a"] * 65),
        ("stop_token_ids", [1] * 1025),
        ("metadata", {str(i): "" for i in range(65)}),
        ("chat_template_kwargs", {str(i): 1 for i in range(65)}),
        ("tools", [{}] * 1025),
    ],
)
def test_lists_that_are_too_long(field: str, value: object) -> None:
    body = json.dumps({"messages": [], field: value}).encode()
    with pytest.raises(APIError, match="of length <= ") as raised:
        parse_body(body, ChatCompletionRequest, CHAT_UNSUPPORTED)
    assert raised.value.param == field


class Query(msgspec.Struct):
    mode: Literal["a", "b"] = "a"
    flag: bool = False
    count: int | None = None


def test_queries() -> None:
    assert parse_query(b"", Query) == Query()
    assert parse_query(b"flag=true&count=17&mode=b", Query) == Query("b", True, 17)


@pytest.mark.parametrize(
    ("query", "param", "message"),
    [
        (b"mode=c", "mode", "mode: Invalid enum value"),
        (b"mode=a&mode=b", "mode", "given twice"),
        (b"count=1.5", "count", "count: Expected `int`"),
        (b"flag=maybe", "flag", "flag: Expected `bool`"),
        (b"flga=1", "flga", "unknown parameter 'flga'; did you mean 'flag'"),
        (b"count=%ff", None, "not valid"),
        (b"\xff", None, "not valid"),
        (b"&".join(b"a=1" for _ in range(101)), None, "not valid"),
    ],
)
def test_wrong_queries(query: bytes, param: str | None, message: str) -> None:
    with pytest.raises(APIError, match=re.escape(message)) as raised:
        parse_query(query, Query)
    assert (raised.value.status, raised.value.param) == (400, param)
