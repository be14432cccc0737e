"""The Files API: /v1/files."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from octavo.entrypoints.batches.errors import storage_error
from octavo.entrypoints.batches.objects import (
    DeletedFile,
    FileList,
    FileListQuery,
    FileObject,
    FileUpload,
)
from octavo.entrypoints.batches.upload import MAX_OVERHEAD_BYTES, UploadForm, boundary_of, too_large
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.errors import APIError, bad_request, json_response, unavailable
from octavo.entrypoints.openai.shares import exceeds_share
from octavo.errors import shown

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from octavo.entrypoints.batches.service import BatchService
    from octavo.entrypoints.openai.endpoint import Call

MAX_UPLOADS = 16
"""At once."""
MIN_UPLOAD_RATE = 64 * 2**10
"""Bytes per second that an upload must have, after the time that every body has."""

_PIECE_BYTES = 256 * 2**10


def service_of(call: Call) -> BatchService:
    """The server's batches. Raises APIError 501."""
    service = call.server.batches
    if service is None:
        raise APIError(501, "this server keeps no files and batches: it has no --batch-dir")
    return service


def owner_of(call: Call) -> str:
    """Whose files and batches a request may see: those of its key."""
    return call.scope["octavo.key"] or ""


async def create_file(call: Call) -> Response:
    """Take in a file."""
    service = service_of(call)
    boundary = boundary_of(call.header("content-type"))
    max_bytes = call.server.config.max_batch_file_bytes
    length = call.header("content-length")
    num_bytes = max_bytes
    if length.isdigit():
        if int(length) > max_bytes + MAX_OVERHEAD_BYTES:
            raise too_large(max_bytes)
        num_bytes = min(max_bytes, int(length))
    owner = owner_of(call)
    if service.uploads.total() >= MAX_UPLOADS:
        raise unavailable(f"{MAX_UPLOADS} uploads are under way", "queue_full")
    num_own = service.uploads[owner]
    if owner and exceeds_share(num_own, service.uploads.total(), MAX_UPLOADS):
        raise unavailable(f"{num_own} uploads are under way, this key's share", "queue_full")
    service.uploads[owner] += 1
    try:
        file_id = await service.call(lambda store: store.files.begin_upload(owner, num_bytes))
        try:
            return json_response(await _take_in(call, service, file_id, boundary))
        except BaseException as error:
            service.call_soon(lambda store: store.files.remove_upload(file_id))
            if isinstance(error, OSError):
                raise storage_error(error) from None
            raise
    finally:
        service.uploads[owner] -= 1


async def _take_in(call: Call, service: BatchService, file_id: str, boundary: bytes) -> FileObject:
    path = await service.call(lambda store: store.files.path_of(file_id))
    form = UploadForm(boundary, path, call.server.config.max_batch_file_bytes)
    try:
        await _receive(call, form)
        await asyncio.to_thread(form.finish)
        upload = _checked(form)
    finally:
        await asyncio.to_thread(form.close)
    filename, num_bytes = form.filename, form.num_bytes
    assert filename is not None
    seconds = upload.expires_after_seconds
    lifetime = None if seconds is msgspec.UNSET else seconds
    return await service.call(
        lambda store: store.files.finish_upload(file_id, filename, num_bytes, lifetime)
    )


async def _receive(call: Call, form: UploadForm) -> None:
    """Feed the body to the form. Raises APIError; ClientDisconnect."""
    started = time.monotonic()
    num_bytes, more = 0, True
    while more:
        late = started + call.server.config.body_timeout + num_bytes / MIN_UPLOAD_RATE
        try:
            message = await asyncio.wait_for(call.receive(), max(0.0, late - time.monotonic()))
        except asyncio.TimeoutError:
            headers = {"connection": "close"}
            raise APIError(408, "the body did not arrive in time", headers=headers) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body = message.get("body", b"")
        num_bytes += len(body)
        await asyncio.to_thread(form.feed, body)
        if num_bytes - form.num_bytes > MAX_OVERHEAD_BYTES:
            raise bad_request(f"the form has more than {MAX_OVERHEAD_BYTES} bytes beside its file")
        more = message.get("more_body", False)


def _checked(form: UploadForm) -> FileUpload:
    """The form's fields. Raises APIError 400."""
    values: dict[str, Any] = {"file": b"", **form.fields}
    purpose = values.get("purpose")
    if purpose != "batch":
        raise bad_request(
            f"purpose={shown(purpose)} must be 'batch', the only use for files here", "purpose"
        )
    try:
        upload = msgspec.convert(values, FileUpload, strict=False)
    except msgspec.ValidationError as error:
        raise bad_request(f"expires_after: {error}", "expires_after") from None
    if (upload.expires_after_anchor is msgspec.UNSET) != (
        upload.expires_after_seconds is msgspec.UNSET
    ):
        raise bad_request("expires_after needs both anchor and seconds", "expires_after")
    return upload


async def list_files(call: Call) -> Response:
    """A page of the files of this key."""
    query = call.query(FileListQuery)
    files, has_more = await service_of(call).call(
        lambda store: store.files.page(
            owner_of(call),
            purpose=query.purpose,
            limit=query.limit,
            order=query.order,
            after=query.after,
        )
    )
    return json_response(
        FileList(
            data=files,
            first_id=files[0].id if files else None,
            last_id=files[-1].id if files else None,
            has_more=has_more,
        )
    )


async def get_file(call: Call) -> Response:
    """What is known of a file."""
    file_id = call.path_params["id"]
    file = await service_of(call).call(lambda store: store.files.get(owner_of(call), file_id))
    return json_response(file)


async def delete_file(call: Call) -> Response:
    """Remove a file and its content."""
    file_id = call.path_params["id"]
    await service_of(call).call(lambda store: store.files.delete(owner_of(call), file_id))
    return json_response(DeletedFile(id=file_id))


async def get_file_content(call: Call) -> Response:
    """What is in a file."""
    service = service_of(call)
    file_id = call.path_params["id"]
    file = await service.call(lambda store: store.files.get(owner_of(call), file_id))
    path = await service.call(lambda store: store.files.path_of(file.id))
    try:
        content = await asyncio.to_thread(_open_content, path, file.bytes)
    except OSError as error:
        raise storage_error(error) from None
    return FileContent(content, file.bytes, call.server.config.stall_timeout)


def _open_content(path: Path, num_bytes: int) -> IO[bytes]:
    """A file of so many bytes. Raises APIError 404: it was deleted just now, or something else has
    removed it, or a part of it; OSError."""
    try:
        content = path.open("rb", 0)
        if os.fstat(content.fileno()).st_size >= num_bytes:
            return content
        content.close()
    except FileNotFoundError:
        pass
    raise APIError(404, f"the content of {path.name} is not there any more", param="id")


class FileContent(Response):
    """A file as a response.

    Args:
        file: is closed in the end.
        stall_timeout: seconds for which the client may take nothing.
    """

    def __init__(self, file: IO[bytes], num_bytes: int, stall_timeout: float) -> None:
        headers = {"content-length": str(num_bytes), "x-content-type-options": "nosniff"}
        super().__init__(headers=headers, media_type="application/octet-stream")
        self._file = file
        self._stall_timeout = stall_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file as file:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            more = True
            while more:
                piece = await asyncio.to_thread(file.read, _PIECE_BYTES)
                more = bool(piece)
                message = {"type": "http.response.body", "body": piece, "more_body": more}
                try:
                    await asyncio.wait_for(send(message), self._stall_timeout)
                except asyncio.TimeoutError:
                    raise ClientDisconnect from None


ROUTES = (
    APIRoute(
        method="POST",
        path="/v1/files",
        summary="Upload a file of requests for a batch",
        handler=create_file,
        request=FileUpload,
        request_media_type="multipart/form-data",
        response=FileObject,
        errors=(501,),
    ),
    APIRoute(
        method="GET",
        path="/v1/files",
        summary="Your files",
        handler=list_files,
        query=FileListQuery,
        response=FileList,
        errors=(404, 501),
    ),
    APIRoute(
        method="GET",
        path="/v1/files/{id}",
        summary="A file",
        handler=get_file,
        response=FileObject,
        errors=(404, 501),
    ),
    APIRoute(
        method="DELETE",
        path="/v1/files/{id}",
        summary="Delete a file and its content",
        handler=delete_file,
        response=DeletedFile,
        errors=(404, 409, 501),
    ),
    APIRoute(
        method="GET",
        path="/v1/files/{id}/content",
        summary="What is in a file",
        handler=get_file_content,
        response=str,
        media_type="application/octet-stream",
        errors=(404, 501),
    ),
)
