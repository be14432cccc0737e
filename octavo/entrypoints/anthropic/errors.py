"""Errors as Anthropic's API words them: {"type": "error", "error": {"type", "message"}}."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from octavo.entrypoints.openai.errors import APIError, json_response
from octavo.entrypoints.openai.sse import named_event

if TYPE_CHECKING:
    from starlette.responses import Response

PATH = "/v1/messages"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class AnthropicErrorBody(msgspec.Struct, kw_only=True):
    """What is under "error"."""

    type: str
    message: str


class AnthropicError(msgspec.Struct, kw_only=True, tag_field="type", tag="error"):
    """The body of every answer that is not 2xx, and of the error event of a stream."""

    error: AnthropicErrorBody
    request_id: str | None = None


def anthropic_body(error: APIError, request_id: str | None = None) -> AnthropicError:
    """An error in Anthropic's shape."""
    other = "invalid_request_error" if error.status < 500 else "api_error"
    body = AnthropicErrorBody(type=_TYPES.get(error.status, other), message=error.message)
    return AnthropicError(error=body, request_id=request_id)


def anthropic_failure(error: APIError) -> bytes:
    """The event of what fails in a stream."""
    return named_event(anthropic_body(error))


def error_response(error: APIError, scope: Any) -> Response:
    """The answer, in the shape of the API that the request's path is of."""
    path = scope["path"]
    if path != PATH and not path.startswith(PATH + "/"):
        return error.response()
    body = anthropic_body(error, scope["octavo.request_id"])
    return json_response(body, error.status, error.headers)
