"""Lines of a batch: requests as they stand in the input, results as they stand in the output.

    {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {…}}
    {"id": "batch_req_…", "custom_id": "a", "response": {"status_code": 200, "request_id": …,
     "body": {…}}, "error": null}

A file is UTF-8, perhaps with a byte order mark; lines end with LF or CRLF, the last one may lack
it, and blank ones are passed over. Nothing here holds more of a file than a line.
"""

from __future__ import annotations

import secrets
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import IO, Annotated, Any

import msgspec
from msgspec import Meta, Raw

from octavo.entrypoints.batches.objects import BatchError
from octavo.errors import shown

MAX_CUSTOM_ID = 512
"""Characters."""

_BOM = b"\xef\xbb\xbf"
_SKIP_BYTES = 2**20


class BatchRequestInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One request."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=MAX_CUSTOM_ID)]
    method: str
    url: str
    body: Raw


class BatchResponse(msgspec.Struct, kw_only=True):
    """What the endpoint answered."""

    status_code: int
    request_id: str
    body: Raw


class BatchLineError(msgspec.Struct, kw_only=True):
    """Why a request has no answer."""

    code: str
    message: str


class BatchRequestOutput(msgspec.Struct, kw_only=True):
    """One result: a response, or an error."""

    id: str
    custom_id: str | None
    response: BatchResponse | None = None
    error: BatchLineError | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an input.

    Attributes:
        number: from 1.
        data: without its end; None where it is longer than allowed.
    """

    number: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class LineResult:
    """A line of an output.

    Attributes:
        number: of the line of the input.
        is_error: it belongs into the error file.
        data: with its end.
    """

    number: int
    is_error: bool
    data: bytes


class LineError(Exception):
    """A line that is no request of its batch.

    Attributes:
        custom_id: where the line has one that can be read.
    """

    def __init__(self, error: BatchError, custom_id: str | None) -> None:
        super().__init__(error.message)
        self.error = error
        self.custom_id = custom_id


def read_lines(file: IO[bytes], max_bytes: int, *, without: Container[int] = ()) -> Iterator[Line]:
    """The lines of a file that are not blank, each of at most `max_bytes`, but some."""
    number = 0
    while data := file.readline(max_bytes + 2):
        number += 1
        if number == 1:
            data = data.removeprefix(_BOM)
        is_whole = data.endswith(b"\n") or len(data) < max_bytes + 2
        if not is_whole:
            while (more := file.readline(_SKIP_BYTES)) and not more.endswith(b"\n"):
                pass
        if number in without:
            continue
        data = data.rstrip(b"\r\n")
        if not is_whole or len(data) > max_bytes:
            yield Line(number, None)
        elif data.strip():
            yield Line(number, data)


_decode = msgspec.json.Decoder(BatchRequestInput).decode
_decode_any = msgspec.json.Decoder(dict[str, Raw]).decode


def parse_line(line: Line, endpoint: str | None, max_bytes: int) -> BatchRequestInput:
    """A line's request.

    Args:
        endpoint: that the whole batch is for; None where each line may have its own.

    Raises:
        LineError: it is none, or is for another endpoint.
    """
    if line.data is None:
        raise _error(line, "line_too_long", f"it has more than {max_bytes} bytes")
    try:
        request = _decode(line.data)
    except msgspec.ValidationError as error:
        custom_id = _custom_id(line.data)
        message = str(error).replace(" - at `$`", "")
        code = "missing_required_parameter" if "missing" in message else "invalid_request"
        raise _error(line, code, message, custom_id) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _error(line, "invalid_json_line", "it is not valid JSON") from None
    custom_id = request.custom_id
    if request.method != "POST":
        message = f"method={shown(request.method)} must be 'POST'"
        raise _error(line, "invalid_method", message, custom_id, "method")
    if endpoint is not None and request.url != endpoint:
        message = f"url={shown(request.url)} must be the batch's endpoint, {endpoint!r}"
        raise _error(line, "mismatched_url", message, custom_id, "url")
    if not bytes(request.body).lstrip().startswith(b"{"):
        raise _error(line, "invalid_request", "body must be an object", custom_id, "body")
    return request


def duplicate_error(line: Line, custom_id: str) -> LineError:
    """For a line whose custom_id another one has."""
    message = f"custom_id={shown(custom_id)} is that of another line; each needs its own"
    return _error(line, "duplicate_custom_id", message, custom_id, "custom_id")


def _error(
    line: Line, code: str, message: str, custom_id: str | None = None, param: str | None = None
) -> LineError:
    message = f"line {line.number}: {message}"
    error = BatchError(code, message, line=line.number, param=param)
    return LineError(error, custom_id)


def _custom_id(data: bytes) -> str | None:
    """That of a line which is an object, and otherwise wrong."""
    try:
        value: Any = msgspec.json.decode(_decode_any(data)["custom_id"])
    except (msgspec.DecodeError, KeyError, RecursionError, UnicodeDecodeError):
        return None
    return value if isinstance(value, str) and len(value) <= MAX_CUSTOM_ID else None


def response_line(
    number: int, custom_id: str | None, status: int, request_id: str, body: bytes
) -> LineResult:
    """The result of a request that was answered."""
    response = BatchResponse(status_code=status, request_id=request_id, body=Raw(body))
    return _result(number, status != 200, custom_id, response=response)


def error_line(number: int, custom_id: str | None, code: str, message: str) -> LineResult:
    """The result of a request that was not."""
    return _result(number, True, custom_id, error=BatchLineError(code=code, message=message))


def _result(
    number: int,
    is_error: bool,
    custom_id: str | None,
    *,
    response: BatchResponse | None = None,
    error: BatchLineError | None = None,
) -> LineResult:
    output = BatchRequestOutput(
        id=f"batch_req_{secrets.token_hex(12)}", custom_id=custom_id, response=response, error=error
    )
    return LineResult(number, is_error, msgspec.json.encode(output) + b"\n")
