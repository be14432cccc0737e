"""The Batches API: /v1/batches."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from octavo.entrypoints.batches.answers import ENDPOINTS
from octavo.entrypoints.batches.files import owner_of, service_of
from octavo.entrypoints.batches.objects import Batch, BatchList, BatchListQuery, BatchRequest
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.errors import bad_request, json_response
from octavo.entrypoints.openai.parsing import parse_body
from octavo.errors import shown

if TYPE_CHECKING:
    from starlette.responses import Response

    from octavo.entrypoints.openai.endpoint import Call

MAX_WINDOW_DAYS = 30
_WINDOW = re.compile(r"([1-9]\d{0,5})([mhd])", re.ASCII)
_SECONDS = {"m": 60, "h": 3600, "d": 86400}


async def create_batch(call: Call) -> Response:
    """Begin a batch."""
    service = service_of(call)
    request = parse_body(call.take_body(), BatchRequest, {})
    if request.endpoint not in ENDPOINTS:
        raise bad_request(
            f"endpoint={shown(request.endpoint)} must be one of {', '.join(ENDPOINTS)}", "endpoint"
        )
    window = window_seconds(request.completion_window)
    expires = request.output_expires_after
    batch = await service.call(
        lambda store: store.batches.create(
            owner_of(call),
            endpoint=request.endpoint,
            input_file_id=request.input_file_id,
            completion_window=request.completion_window,
            window_seconds=window,
            metadata=request.metadata,
            output_expires_after=None if expires is None else expires.seconds,
        )
    )
    service.notify()
    return json_response(batch)


def window_seconds(window: str) -> int:
    """The seconds of "24h". Raises APIError 400."""
    match = _WINDOW.fullmatch(window)
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 0 < seconds <= MAX_WINDOW_DAYS * 86400:
        raise bad_request(
            f"completion_window={shown(window)} must be a number of minutes, hours or days, such "
            f"as '24h', and at most '{MAX_WINDOW_DAYS}d'",
            "completion_window",
        )
    return seconds


async def list_batches(call: Call) -> Response:
    """A page of the batches of this key."""
    query = call.query(BatchListQuery)
    batches, has_more = await service_of(call).call(
        lambda store: store.batches.page(owner_of(call), limit=query.limit, after=query.after)
    )
    return json_response(
        BatchList(
            data=batches,
            first_id=batches[0].id if batches else None,
            last_id=batches[-1].id if batches else None,
            has_more=has_more,
        )
    )


async def get_batch(call: Call) -> Response:
    """How far a batch is."""
    batch_id = call.path_params["id"]
    batch = await service_of(call).call(lambda store: store.batches.get(owner_of(call), batch_id))
    return json_response(batch)


async def cancel_batch(call: Call) -> Response:
    """End a batch early."""
    service = service_of(call)
    batch_id = call.path_params["id"]
    batch = await service.call(lambda store: store.batches.cancel(owner_of(call), batch_id))
    service.notify()
    return json_response(batch)


ROUTES = (
    APIRoute(
        method="POST",
        path="/v1/batches",
        summary="Run the requests of a file, in capacity that others leave",
        handler=create_batch,
        request=BatchRequest,
        response=Batch,
        errors=(404, 501),
    ),
    APIRoute(
        method="GET",
        path="/v1/batches",
        summary="Your batches",
        handler=list_batches,
        query=BatchListQuery,
        response=BatchList,
        errors=(404, 501),
    ),
    APIRoute(
        method="GET",
        path="/v1/batches/{id}",
        summary="A batch",
        handler=get_batch,
        response=Batch,
        errors=(404, 501),
    ),
    APIRoute(
        method="POST",
        path="/v1/batches/{id}/cancel",
        summary="Cancel a batch",
        handler=cancel_batch,
        response=Batch,
        errors=(404, 409, 501),
    ),
)
