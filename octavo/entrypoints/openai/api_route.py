"""One declaration per route: `app.py` mounts it, `openapi.py` describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import msgspec

    from octavo.entrypoints.openai.endpoint import Handler


@dataclass(frozen=True, kw_only=True)
class APIRoute:
    """What a route takes and gives, and who answers.

    Attributes:
        path: as Starlette has it: "/v1/models/{name:path}".
        summary: a line for the OpenAPI document.
        handler: is given the `Call`, and returns a response or an `EventStream`.
        response: type of the answer's body; or several types.
        request: struct of the JSON body; or several; None where there is none.
        unsupported: as for `parsing.parse_body`.
        query: struct of the query's parameters, for `Call.query`; None where there are none.
        request_headers: names of headers that say what is wanted.
        error: type of an error's body, where it is not `errors.ErrorResponse`.
        event: type of an event's data, where the answer may be a stream; or several types.
        status: of an answer that is no error.
        media_type: of the answer.
        request_media_type: of the body; other than JSON, it is the handler that reads it, by
            `Call.receive`, within its own limits.
        errors: statuses of errors besides those that follow from the rest.
        queued: it is work for the engine: refused where too much waits or the server stops, and
            counted as waiting until the handler has told its ticket what it asks for.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    summary: str
    handler: Handler
    response: Any
    request: type[msgspec.Struct] | tuple[type[msgspec.Struct], ...] | None = None
    unsupported: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    query: type[msgspec.Struct] | None = None
    request_headers: tuple[str, ...] = ()
    error: Any = None
    event: Any = None
    status: int = 200
    media_type: str = "application/json"
    request_media_type: str = "application/json"
    errors: tuple[int, ...] = ()
    queued: bool = False

    @property
    def request_types(self) -> tuple[type[msgspec.Struct], ...]:
        """Structs of the JSON body; none where there is none."""
        return _as_tuple(self.request)

    @property
    def response_types(self) -> tuple[Any, ...]:
        """Types of the answer's body."""
        return _as_tuple(self.response)

    @property
    def event_types(self) -> tuple[Any, ...]:
        """Types of an event's data; none where the answer is no stream."""
        return _as_tuple(self.event)

    @property
    def takes_json(self) -> bool:
        """Whether its body is JSON, which is read before the handler is called."""
        return self.request is not None and self.request_media_type == "application/json"

    @property
    def error_statuses(self) -> tuple[int, ...]:
        """Statuses of all errors that it may answer with, ascending."""
        statuses = {401, 429, 500, 503, *self.errors}
        if self.method != "GET":
            statuses.add(403)
        if self.request is not None:
            statuses |= {400, 408, 413, 415}
            if any("model" in kind.__struct_fields__ for kind in self.request_types):
                statuses.add(404)
        if self.queued:
            statuses.add(429)
        if self.query is not None:
            statuses.add(400)
        return tuple(sorted(statuses))


def _as_tuple(types: Any) -> tuple[Any, ...]:
    if types is None:
        return ()
    return types if isinstance(types, tuple) else (types,)
