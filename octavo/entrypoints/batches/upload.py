"""An uploaded form: parsed as it comes, its file written straight to the disk."""

from __future__ import annotations

import os
from pathlib import Path

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from octavo.entrypoints.openai.errors import APIError, bad_request
from octavo.errors import shown

FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
MAX_OVERHEAD_BYTES = 64 * 2**10
"""Of a form, besides its file."""

_MAX_VALUE_BYTES = 256
_MAX_FILENAME = 255
_MAX_BOUNDARY = 70  # RFC 2046, section 5.1.1


class UploadForm:
    """A form with a file, and fields. Its methods block; one thread at a time may call them.

    Args:
        boundary: of its parts, see `boundary_of`.
        path: where to write the file; it must not exist.
        max_bytes: of the file.

    Attributes:
        fields: name → text.
        filename: as the client calls it; only ever shown.
        num_bytes: of the file, so far.
    """

    def __init__(self, boundary: bytes, path: Path, max_bytes: int) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._is_whole = False
        self._name: str | None = None  # of the part that is being read
        self._header = b""
        self._header_value = b""
        self._value = bytearray()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._add_header_name,
                "on_header_value": self._add_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._add_data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, 0o600), "wb")

    def feed(self, data: bytes) -> None:
        """More of the body.

        Raises:
            APIError: 400, what is wrong with it; 413, the file is too large.
            OSError: it cannot be written.
        """
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise bad_request(f"the body is no valid form: {error}") from None

    def finish(self) -> None:
        """The body has come: put the file on the disk for good. Raises as `feed`."""
        if not self._is_whole:
            raise bad_request("the body ends in the middle of the form")
        if self.filename is None:
            raise bad_request("the form has no file; send one as the field 'file'", "file")
        if not self.num_bytes:
            raise bad_request("the file is empty", "file")
        self._file.flush()
        os.fdatasync(self._file.fileno())

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    # ---------------------------------------------------------------- what the parser finds

    def _begin_part(self) -> None:
        self._name = None
        self._value.clear()

    def _add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._begin_field(parse_options_header(self._header_value)[1])
        self._header = self._header_value = b""

    def _begin_field(self, options: dict[bytes, bytes]) -> None:
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name == "file":
            if self.filename is not None:
                raise bad_request("the form has two files; send one", "file")
            filename = options.get(b"filename", b"").decode("utf-8", "replace")
            if not 0 < len(filename) <= _MAX_FILENAME:
                raise bad_request(f"the filename must have 1…{_MAX_FILENAME} characters", "file")
            self.filename = filename
        elif name not in FIELDS:
            known = ", ".join(("file", *FIELDS))
            raise bad_request(f"unknown field {shown(name)}; there are {known}", name[:64] or None)
        elif name in self.fields:
            raise bad_request(f"{name} is given twice", name)
        self._name = name

    def _end_headers(self) -> None:
        if self._name is None:
            raise bad_request("a part of the form has no name")

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._name != "file":
            self._value += data[start:end]
            if len(self._value) > _MAX_VALUE_BYTES:
                raise bad_request(f"{self._name} is too long", self._name)
            return
        self.num_bytes += end - start
        if self.num_bytes > self._max_bytes:
            raise too_large(self._max_bytes)
        self._file.write(memoryview(data)[start:end])

    def _end_part(self) -> None:
        if self._name is not None and self._name != "file":
            self.fields[self._name] = self._value.decode("utf-8", "replace")

    def _end(self) -> None:
        self._is_whole = True


def boundary_of(content_type: str) -> bytes:
    """The boundary that a form's Content-Type gives. Raises APIError 415: this is no form."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= _MAX_BOUNDARY:
        raise APIError(
            415,
            f"unsupported content type {shown(content_type)}; send a form: "
            f"'Content-Type: multipart/form-data; boundary=1…{_MAX_BOUNDARY} characters'",
            code="unsupported_content_type",
        )
    return boundary


def too_large(max_bytes: int) -> APIError:
    """For a file of more than `max_bytes`."""
    headers = {"connection": "close"}  # or the rest would have to be read
    message = f"the file has more than the {max_bytes} bytes of --max-batch-file-bytes"
    return APIError(413, message, param="file", code="request_too_large", headers=headers)
