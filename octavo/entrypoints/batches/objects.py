"""Requests and answers of the Files and Batches APIs; names and meanings are OpenAI's."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

MAX_FILE_LIST = 10_000
MAX_BATCH_LIST = 100
MAX_METADATA = 16
MIN_EXPIRY_SECONDS = 3600
MAX_EXPIRY_SECONDS = 30 * 86400

Order = Literal["asc", "desc"]
Purpose = Literal["batch", "batch_output"]

BatchStatus = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]

UNFINISHED: tuple[BatchStatus, ...] = ("validating", "in_progress", "finalizing", "cancelling")
"""Statuses that a batch leaves again."""


class FileObject(msgspec.Struct, kw_only=True):
    """A stored file.

    Attributes:
        bytes: its size.
        created_at, expires_at: in seconds since 1970.
    """

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: Purpose
    status: str = "processed"


class FileList(msgspec.Struct, kw_only=True):
    """A page of files."""

    object: str = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(msgspec.Struct, kw_only=True):
    """A file that is no more."""

    id: str
    object: str = "file"
    deleted: bool = True


class BatchRequestCounts(msgspec.Struct, kw_only=True):
    """Lines of a batch.

    Attributes:
        total: 0 until the input has been validated.
        completed: those in the output file.
        failed: those in the error file.
    """

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchError(msgspec.Struct):
    """What is wrong with a batch's input.

    Attributes:
        line: of the input file, from 1.
    """

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(msgspec.Struct, kw_only=True):
    """Why a batch failed; of very many errors, the first ones."""

    object: str = "list"
    data: list[BatchError]


class Batch(msgspec.Struct, kw_only=True):
    """A batch. Times are in seconds since 1970."""

    id: str
    object: str = "batch"
    endpoint: str
    input_file_id: str
    completion_window: str
    status: BatchStatus
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: BatchRequestCounts
    metadata: dict[str, str] | None = None


class BatchList(msgspec.Struct, kw_only=True):
    """A page of batches."""

    object: str = "list"
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


# ------------------------------------------------------------------------ requests


class FileUpload(msgspec.Struct, kw_only=True):
    """A form (multipart/form-data).

    Attributes:
        file: JSON lines, one request each.
        purpose: "batch".
        expires_after_anchor, expires_after_seconds: delete it so long (an hour to 30 days) after
            its creation.
    """

    file: Annotated[bytes, Meta(extra_json_schema={"contentEncoding": "binary"})]
    purpose: Literal["batch"]
    expires_after_anchor: Literal["created_at"] | UnsetType = msgspec.field(
        default=UNSET, name="expires_after[anchor]"
    )
    expires_after_seconds: (
        Annotated[int, Meta(ge=MIN_EXPIRY_SECONDS, le=MAX_EXPIRY_SECONDS)] | UnsetType
    ) = msgspec.field(default=UNSET, name="expires_after[seconds]")


class FileListQuery(msgspec.Struct, kw_only=True):
    """Which files to list.

    Attributes:
        after: id of the last one of the page before.
        order: by time of creation.
    """

    purpose: Purpose | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_FILE_LIST)] = MAX_FILE_LIST
    order: Order = "desc"
    after: str | None = None


class BatchListQuery(msgspec.Struct, kw_only=True):
    """Which batches to list, the newest first.

    Attributes:
        after: id of the last one of the page before.
    """

    limit: Annotated[int, Meta(ge=1, le=MAX_BATCH_LIST)] = 20
    after: str | None = None


class OutputExpiresAfter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """When to delete a batch's output and error files."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=MIN_EXPIRY_SECONDS, le=MAX_EXPIRY_SECONDS)]


class BatchRequest(msgspec.Struct, kw_only=True):
    """POST /v1/batches.

    Attributes:
        input_file_id: of an uploaded file of purpose "batch".
        endpoint: the route that every line is for.
        completion_window: after which what has not run is given up: "24h"; minutes and days too.
        metadata: the caller's own labels.
        output_expires_after: delete the results after so long.
    """

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: (
        Annotated[
            dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
            Meta(max_length=MAX_METADATA),
        ]
        | None
    ) = None
    output_expires_after: OutputExpiresAfter | None = None
