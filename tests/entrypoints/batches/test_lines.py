from __future__ import annotations

import io

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.entrypoints.batches.lines import (
    Line,
    LineError,
    error_line,
    parse_line,
    read_lines,
    response_line,
)

CHAT = "/v1/chat/completions"


def read(data: bytes, max_bytes: int = 100, **options: set[int]) -> list[tuple[int, bytes | None]]:
    return [(x.number, x.data) for x in read_lines(io.BytesIO(data), max_bytes, **options)]


def test_what_ends_lines() -> None:
    assert read(b"\xef\xbb\xbf{}\r\n\n  \r\n{1}\n{2}") == [(1, b"{}"), (4, b"{1}"), (5, b"{2}")]
    assert read(b"") == read(b"\n\r\n") == []
    assert read(b"a\nb\nc\n", without={2}) == [(1, b"a"), (3, b"c")]


@given(st.lists(st.integers(0, 40), max_size=8), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_long_lines_are_told_and_passed(lengths: list[int], end: bytes, is_ended: bool) -> None:
    data = end.join(b"x" * n for n in lengths) + (end if is_ended else b"")
    expected = [(i + 1, b"x" * n if n <= 20 else None) for i, n in enumerate(lengths) if n]
    assert read(data, 20) == expected


GOOD = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"x":[1]}}'


def test_a_good_line() -> None:
    request = parse_line(Line(7, GOOD), CHAT, 100)
    assert request.custom_id == "a"
    assert bytes(request.body) == b'{"x":[1]}'


@pytest.mark.parametrize(
    ("data", "code", "custom_id"),
    [
        (None, "line_too_long", None),
        (b"{bad", "invalid_json_line", None),
        (GOOD.replace(b'"a"', b'"\xff"'), "invalid_json_line", None),
        (b"[" * 100_000, "invalid_request", None),
        (b'{"custom_id":"a","body":' + b"[" * 100_000, "invalid_json_line", None),
        (b"[]", "invalid_request", None),
        (b"{}", "missing_required_parameter", None),
        (GOOD.replace(b'"method":"POST",', b""), "missing_required_parameter", "a"),
        (GOOD.replace(b'"a"', b"1"), "invalid_request", None),
        (GOOD.replace(b'"a"', b'""'), "invalid_request", ""),
        (GOOD.replace(b'"a"', b'"%s"' % (b"x" * 513)), "invalid_request", None),
        (GOOD.replace(b'"a"', b'"a","more":1'), "invalid_request", "a"),
        (GOOD.replace(b"POST", b"GET"), "invalid_method", "a"),
        (GOOD.replace(b"chat", b"nope"), "mismatched_url", "a"),
        (GOOD.replace(b'{"x":[1]}', b"[1]"), "invalid_request", "a"),
    ],
)
def test_bad_lines(data: bytes | None, code: str, custom_id: str | None) -> None:
    with pytest.raises(LineError) as caught:
        parse_line(Line(7, data), CHAT, 100)
    assert caught.value.error.code == code
    assert caught.value.error.line == 7
    assert caught.value.custom_id == custom_id
    assert str(caught.value).startswith("line 7: ")


def test_results() -> None:
    result = response_line(3, "é", 200, "abc", b'{"a": 1}')
    assert (result.number, result.is_error) == (3, False)
    assert result.data.count(b"\n") == 1
    value = msgspec.json.decode(result.data)
    assert value.pop("id").startswith("batch_req_")
    assert value == {
        "custom_id": "é",
        "response": {"status_code": 200, "request_id": "abc", "body": {"a": 1}},
        "error": None,
    }
    assert response_line(3, "a", 400, "abc", b"{}").is_error
    failed = error_line(4, None, "code", "why")
    assert failed.is_error
    value = msgspec.json.decode(failed.data)
    assert value["response"] is value["custom_id"] is None
    assert value["error"] == {"code": "code", "message": "why"}
