"""GET /openapi.json and GET /docs, made from the routes' declarations."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.errors import ErrorResponse, json_response
from octavo.entrypoints.openai.gate import is_open
from octavo.version import __version__

if TYPE_CHECKING:
    from octavo.entrypoints.openai.endpoint import Call

_ERRORS = {
    400: "The request is wrong: `param` names the field",
    401: "No valid API key",
    403: "A browser asks for a page of another origin",
    404: "There is no such thing",
    408: "The body did not come in time",
    409: "Not in this state",
    410: "Not kept any more",
    413: "The body is too large",
    415: "The body is not of this type",
    429: "Too many requests of this key",
    500: "The server, or the step that computed this request, failed",
    501: "This server was not started with that",
    503: "Not now: the queue is full, the server stops, the engine is gone",
}
_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")


def documentation_routes(routes: Sequence[APIRoute]) -> tuple[APIRoute, ...]:
    """The routes that describe `routes`, and themselves."""

    async def openapi(call: Call) -> Response:
        return json_response(openapi_document((*routes, *ours)))

    async def docs(call: Call) -> Response:
        return Response(html_page((*routes, *ours)), media_type="text/html")

    ours = (
        APIRoute(
            method="GET",
            path="/openapi.json",
            summary="This description",
            handler=openapi,
            response=dict[str, Any],
        ),
        APIRoute(
            method="GET",
            path="/docs",
            summary="The same for people",
            handler=docs,
            response=str,
            media_type="text/html",
        ),
    )
    return ours


def openapi_document(routes: Sequence[APIRoute]) -> dict[str, Any]:
    """The API's description, OpenAPI 3.1."""
    kinds: list[Any] = [ErrorResponse]
    for route in routes:
        kinds += [*route.response_types, *route.request_types, *route.event_types]
        kinds += [] if route.error is None else [route.error]
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(map(repr, kinds), schemas))
    for route in routes:
        for kind in route.request_types if route.takes_json else ():
            name = schema_of[repr(kind)]["$ref"].rpartition("/")[2]
            _close(components[name], route.unsupported)
    paths: dict[str, Any] = {}
    statuses = set()
    for route in routes:
        statuses |= set(route.error_statuses)
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schema_of)
    error = {"application/json": {"schema": schema_of[repr(ErrorResponse)]}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": __version__},
        "security": [{"bearer": []}, {"x-api-key": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {
                str(status): {"description": _ERRORS[status], "content": error}
                for status in sorted(statuses)
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _close(schema: dict[str, Any], unsupported: Mapping[str, tuple[Any, ...]]) -> None:
    """No fields but those of the struct, and others' with the values that ask for nothing."""
    schema["additionalProperties"] = False
    for name, neutral in unsupported.items():
        schema["properties"].setdefault(
            name, {"enum": [*neutral, None], "description": "Not supported by this server."}
        )


def _operation(route: APIRoute, schema_of: Mapping[str, Any]) -> dict[str, Any]:
    content = {route.media_type: {"schema": _any_of(route.response_types, schema_of)}}
    if route.event_types:
        kinds = (*route.event_types, route.error or ErrorResponse)
        content["text/event-stream"] = {"schema": _any_of(kinds, schema_of)}
    may_stream = "application/json" in content and "text/event-stream" in content
    responses: dict[str, Any] = {
        str(route.status): {
            "description": "The answer" + ("; with stream=true, events" if may_stream else ""),
            "content": content,
        }
    }
    for status in route.error_statuses:
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
        if route.error is not None:
            error = {"application/json": {"schema": schema_of[repr(route.error)]}}
            responses[str(status)] = {"description": _ERRORS[status], "content": error}
    operation: dict[str, Any] = {"summary": route.summary, "responses": responses}
    if is_open(route.path):
        operation["security"] = []
        del responses["401"]
    if parameters := _parameters(route):
        operation["parameters"] = parameters
    if route.request is not None:
        body = {route.request_media_type: {"schema": _any_of(route.request_types, schema_of)}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _any_of(kinds: Sequence[Any], schema_of: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a value of one of these types."""
    schemas: list[dict[str, Any]] = [schema_of[repr(kind)] for kind in kinds]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _parameters(route: APIRoute) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    parameters += [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}}
        for name in route.request_headers
    ]
    if route.query is not None:
        (_,), components = msgspec.json.schema_components([route.query])
        schema = components[route.query.__name__]
        for name, of_field in schema["properties"].items():
            required = name in schema.get("required", ())
            parameters.append(
                {"name": name, "in": "query", "required": required, "schema": of_field}
            )
    return parameters


def html_page(routes: Sequence[APIRoute]) -> str:
    """The same for people, with nothing loaded from elsewhere."""
    parts = [
        "<!doctype html><meta charset=utf-8><title>Octavo API</title>",
        "<style>body{font:16px/1.5 system-ui;max-width:60em;margin:2em auto;padding:0 1em}"
        "pre{background:#8882;padding:1em;white-space:pre-wrap}</style>",
        f"<h1>Octavo {html.escape(__version__)}</h1>",
        "<p>The OpenAI API. Machines read <a href=openapi.json>openapi.json</a>.</p>",
    ]
    for route in routes:
        path = html.escape(_PARAMETER.sub(r"{\1}", route.path))
        parts.append(f"<h2>{route.method} {path}</h2><p>{html.escape(route.summary)}.</p>")
        for kind in route.request_types:
            docs = html.escape(inspect.getdoc(kind) or "")
            fields = html.escape(", ".join(kind.__struct_fields__))
            parts.append(f"<pre>{docs}\n\nAll fields: {fields}</pre>")
    return "\n".join(parts)
