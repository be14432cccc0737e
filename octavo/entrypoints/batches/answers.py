"""A line's answer: what its endpoint's own handler says, called without HTTP."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from octavo.contracts.messages import ServiceClass
from octavo.entrypoints.batches.line_runner import NotNowError
from octavo.entrypoints.openai import chat, completions, embeddings, scoring
from octavo.entrypoints.openai.endpoint import Call
from octavo.entrypoints.openai.errors import APIError, as_api_error, bad_request
from octavo.entrypoints.openai.record import RequestRecord
from octavo.entrypoints.openai.sse import EventStream
from octavo.entrypoints.responses import routes as responses
from octavo.log import get_logger

if TYPE_CHECKING:
    from starlette.responses import Response

    from octavo.entrypoints.openai.api_route import APIRoute
    from octavo.entrypoints.openai.state import Server

logger = get_logger(__name__)

_PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"),
    *("/v1/score", "/v1/rerank"),
)
_MODULES = (chat, completions, embeddings, responses, scoring)

ENDPOINTS: dict[str, APIRoute] = {
    route.path: route
    for module in _MODULES
    for route in module.ROUTES
    if route.path in _PATHS and route.method == "POST"
}
"""Those that a batch may be for."""


_FINAL = ("aborted", "request_timeout")
"""Codes of a 503 that is an answer: it would end the same way again, or somebody ended it."""


class LineAnswer(NamedTuple):
    """What an endpoint answered: HTTP status, the request's id, JSON."""

    status: int
    request_id: str
    body: bytes


class LineAnswers:
    """Answers requests of batches by a server's endpoints."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def answer(self, url: str, body: bytes, owner: str | None) -> LineAnswer:
        """The answer to one request.

        Args:
            url: of `ENDPOINTS`.
            owner: name of the key of whoever made the batch.

        Raises:
            NotNowError: the server cannot take it now, or the key may not use more tokens.
        """
        request_id = uuid.uuid4().hex
        response, code = await self._respond(ENDPOINTS[url], body, owner, request_id)
        is_final = code in _FINAL or response.headers.get("x-should-retry") == "false"
        if response.status_code in (429, 503) and not is_final:
            raise NotNowError
        return LineAnswer(response.status_code, request_id, bytes(response.body))

    async def _respond(
        self, route: APIRoute, body: bytes, owner: str | None, request_id: str
    ) -> tuple[Response, str | None]:
        """(response, the code of an error)."""
        keys = self._server.keys
        key = next((key for key in keys if key.name == owner), None)
        if owner is not None and key is None and len(keys):
            error = APIError(
                401, "the API key of this batch is not valid any more", code="invalid_api_key"
            )
            return error.response(), error.code
        record = RequestRecord(request_id=request_id, key=key)
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": route.path,
            "path_params": {},
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "octavo.request_id": request_id,
            "octavo.key": owner,
            "octavo.record": record,
        }
        try:
            with self._server.batch_admission.enter(record) as ticket:
                response = await route.handler(
                    Call(
                        server=self._server,
                        request_id=request_id,
                        scope=scope,
                        receive=_never,
                        body=body,
                        ticket=ticket,
                        service_class=ServiceClass.BATCH,
                    )
                )
                if isinstance(response, EventStream):  # which has not begun
                    raise bad_request("a batch has no streams; leave stream out", "stream")
                return response, None
        except Exception as error:
            failure = as_api_error(error)
            if failure.code == "internal_error":
                logger.error("a line of a batch failed", exc_info=error)
            return failure.response(), failure.code


async def _never() -> Any:
    """A client that sends nothing more, and stays."""
    await asyncio.Event().wait()
