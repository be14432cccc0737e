"""POST /invocations: SageMaker's one route for requests of all kinds, told by their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from octavo.entrypoints.openai import chat, completions, embeddings, scoring
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.errors import bad_request
from octavo.entrypoints.openai.parsing import parse_object, without_bom

if TYPE_CHECKING:
    from starlette.responses import Response

    from octavo.entrypoints.openai.endpoint import Call
    from octavo.entrypoints.openai.sse import EventStream

_BY_FIELDS: tuple[tuple[tuple[str, ...], APIRoute], ...] = tuple(
    (names, route)
    for names, path in (
        (("query", "documents"), "/v1/rerank"),
        (("queries", "documents"), "/v1/score"),
        (("text_1", "text_2"), "/v1/score"),
        (("input",), "/v1/embeddings"),
        (("prompt",), "/v1/completions"),
        (("messages",), "/v1/chat/completions"),
    )
    for route in (*chat.ROUTES, *completions.ROUTES, *embeddings.ROUTES, *scoring.ROUTES)
    if route.path == path
)
"""A body with all of these fields is for this route; the first that fits."""


class _Fields(msgspec.Struct):
    """Which of the fields there are; a null is none."""

    query: Raw | UnsetType = UNSET
    queries: Raw | UnsetType = UNSET
    documents: Raw | UnsetType = UNSET
    text_1: Raw | UnsetType = UNSET
    text_2: Raw | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    prompt: Raw | UnsetType = UNSET
    messages: Raw | UnsetType = UNSET


async def invoke(call: Call) -> Response | EventStream:
    """Answer a body as the route answers it that its fields are of."""
    try:
        fields = msgspec.json.decode(without_bom(call.body), type=_Fields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        parse_object(call.body)
        raise bad_request("the body must be a JSON object") from None
    there = {
        name
        for name in _Fields.__struct_fields__
        if (value := getattr(fields, name)) is not UNSET and bytes(value) != b"null"
    }
    for names, route in _BY_FIELDS:
        if there.issuperset(names):
            return await route.handler(call)
    kinds = "; ".join(f"{' and '.join(names)} for {route.path}" for names, route in _BY_FIELDS)
    raise bad_request(f"the body is of no kind of request: it needs {kinds}")


def _types(name: str) -> tuple[Any, ...]:
    """All types that an attribute of the routes has, each once."""
    return tuple(dict.fromkeys(t for _, route in _BY_FIELDS for t in getattr(route, name)))


ROUTES = (
    APIRoute(
        method="POST",
        path="/invocations",
        summary="A request of any of these kinds, told by its fields (SageMaker)",
        handler=invoke,
        request=_types("request_types"),
        response=_types("response_types"),
        event=_types("event_types"),
        queued=True,
    ),
)
