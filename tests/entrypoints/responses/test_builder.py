"""A response under way: what it and its items say when it ends, however that comes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.contracts.answer_events import Content, Reasoning
from octavo.entrypoints.openai.answers import TokenLogprob, Usage
from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.responses.builder import ResponseBuilder
from tests.entrypoints.responses.responses_lab import empty_response

USAGE = Usage(prompt_tokens=3, completion_tokens=4, total_tokens=7)


def begun(status: str = "in_progress") -> ResponseBuilder:
    """One that has said nothing yet."""
    builder = ResponseBuilder(empty_response("resp_1", status), None)
    builder.begin()
    return builder


def decoded(events: list[bytes]) -> list[Any]:
    return [json.loads(event.split(b"data: ", 1)[1]) for event in events]


def error(status: int, code: str | None = None) -> APIError:
    return APIError(status, "it broke", code=code)


@pytest.mark.parametrize(
    ("end", "status", "item_status"),
    [
        (lambda b: b.end("stop", USAGE), "completed", "completed"),
        (lambda b: b.end("length", USAGE), "incomplete", "incomplete"),
        (lambda b: b.fail(error(500)), "failed", "incomplete"),
        (lambda b: b.cancel(), "cancelled", "incomplete"),
    ],
)
def test_the_open_item_ends_with_the_response(end: Any, status: str, item_status: str) -> None:
    """What was closed before stays completed; only a completed response has that time."""
    builder = begun()
    builder.take([Reasoning("Hm."), Content("Yes")])
    told = decoded(end(builder))
    response = told[-1]["response"]
    assert response["status"] == builder.response.status == status
    assert [item["status"] for item in response["output"]] == ["completed", item_status]
    assert [e["item"]["status"] for e in told if "item" in e] == [item_status]
    assert (response["completed_at"] is not None) == (status == "completed")
    assert (response["incomplete_details"] is not None) == (status == "incomplete")


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (error(400), "invalid_request_error"),
        (error(499), "invalid_request_error"),
        (error(500), "server_error"),
        (error(503), "server_error"),
        (error(429, "rate_limit_exceeded"), "rate_limit_exceeded"),
    ],
)
def test_the_code_of_a_failure(failure: APIError, code: str) -> None:
    told = decoded(begun().fail(failure))
    assert told[-1]["response"]["error"] == {"code": code, "message": "it broke"}


def test_a_queued_response_is_in_progress_when_it_has_said_so() -> None:
    assert begun("queued").response.status == "in_progress"


def test_log_probabilities_go_with_the_text_once() -> None:
    builder = begun()
    a, b, c = (TokenLogprob(token=t, logprob=-1.0, bytes=[], top_logprobs=[]) for t in "abc")
    told = decoded(builder.take([Content("a")], [a]))
    assert [entry["token"] for entry in told[-1]["logprobs"]] == ["a"]
    told = decoded(builder.take([Content("b")], [b]))
    assert [entry["token"] for entry in told[-1]["logprobs"]] == ["b"]
    assert builder.take([], [c]) == []  # of text that is withheld: it comes at the end
    part = decoded(builder.end("stop", USAGE))[-1]["response"]["output"][0]["content"][0]
    assert [entry["token"] for entry in part["logprobs"]] == ["a", "b", "c"]
