"""Errors as OpenAI's API words them: {"error": {"message", "type", "param", "code"}}.

Statuses are OpenAI's: a wrong body is 400 (never 422), an unknown model or route 404. Where the
server cannot take a request now (queue full, stopping, engine dead) it is 503 with Retry-After,
as in vLLM; the official client retries those by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from starlette.responses import Response

from octavo.errors import (
    EngineDeadError,
    EngineUnresponsiveError,
    OctavoError,
    PromptTooLongError,
    RequestAbortedError,
    RequestError,
    RequestFailedError,
)

RETRY_AFTER_SECONDS = 1


class ErrorBody(msgspec.Struct, kw_only=True):
    """What is under "error"."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct, kw_only=True):
    """The body of every answer that is not 2xx, and of the error event of a stream."""

    error: ErrorBody


class APIError(Exception):
    """An answer that is not 2xx.

    Args:
        status: HTTP status.
        message: for the user; never internals.
        param: the request's field at fault.
        code: a word for programs.
        headers: more response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> ErrorResponse:
        """The JSON body."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        if self.status == 429:
            kind = "rate_limit_error"
        return ErrorResponse(
            error=ErrorBody(message=self.message, type=kind, param=self.param, code=self.code)
        )

    def response(self) -> Response:
        """The HTTP response."""
        return json_response(self.body, self.status, self.headers)


@contextmanager
def renamed_params(names: Mapping[str, str]) -> Iterator[None]:
    """Errors about a field name it as the request's API does.

    Args:
        names: as `RequestError` calls it → as the API does.
    """
    try:
        yield
    except RequestError as error:
        if error.param is not None:
            error.param = names.get(error.param, error.param)
        raise


def bad_request(message: str, param: str | None = None) -> APIError:
    """A 400."""
    return APIError(400, message, param=param)


def unavailable(message: str, code: str) -> APIError:
    """A 503 that asks to come again."""
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)}
    return APIError(503, message, code=code, headers=headers)


def aborted() -> APIError:
    """A 503 for a request that the server ended."""
    return unavailable("the request was aborted by the server", "aborted")


def as_api_error(error: Exception) -> APIError:
    """Any exception as an answer; what is not meant for users becomes a 500 without its words."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, PromptTooLongError):
        return APIError(400, str(error), param=error.param, code="context_length_exceeded")
    if isinstance(error, RequestError):
        return bad_request(str(error), error.param)
    if isinstance(error, RequestAbortedError):
        return aborted()
    if isinstance(error, RequestFailedError):
        return APIError(500, str(error), code="request_failed")
    if isinstance(error, EngineDeadError):
        return unavailable("the engine has stopped; the server is going down", "engine_dead")
    if isinstance(error, EngineUnresponsiveError):
        return unavailable(str(error), "engine_unresponsive")
    if isinstance(error, OctavoError):
        return APIError(500, str(error))
    return APIError(
        500, "the server failed on this request; its log says more", code="internal_error"
    )


def json_response(
    body: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A struct (or plain value) as a JSON response."""
    return Response(
        msgspec.json.encode(body), status, headers=headers, media_type="application/json"
    )
