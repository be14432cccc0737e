"""GET /openapi.json and GET /docs, made from the request and response structs."""

from __future__ import annotations

import html
import inspect
from typing import Any

import msgspec

from octavo.entrypoints.openai.answers import (
    ChatCompletion,
    Completion,
    DetokenizeResponse,
    ModelList,
    TokenizeResponse,
)
from octavo.entrypoints.openai.errors import ErrorResponse
from octavo.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from octavo.version import __version__

_POSTS: dict[str, tuple[str, Any, Any]] = {
    "/v1/chat/completions": ("Answer a chat", ChatCompletionRequest, ChatCompletion),
    "/v1/completions": ("Continue a text", CompletionRequest, Completion),
    "/tokenize": ("Text or messages to token ids", TokenizeRequest, TokenizeResponse),
    "/detokenize": ("Token ids to text", DetokenizeRequest, DetokenizeResponse),
}
_GETS: dict[str, tuple[str, Any]] = {
    "/health": ("200 while the server takes requests", dict[str, str]),
    "/version": ("The server's version", dict[str, str]),
    "/metrics": ("Prometheus metrics", str),
    "/v1/models": ("The served models", ModelList),
}


def openapi_document() -> dict[str, Any]:
    """The API's description, OpenAPI 3.1."""
    kinds = [kind for _, *pair in _POSTS.values() for kind in pair]
    kinds += [ErrorResponse, *(kind for _, kind in _GETS.values())]
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(map(repr, kinds), schemas))
    error = _content("an error", schema_of[repr(ErrorResponse)])
    paths: dict[str, Any] = {}
    for path, (summary, response) in _GETS.items():
        ok = _content("the answer", schema_of[repr(response)])
        paths[path] = {"get": {"summary": summary, "responses": {"200": ok, "default": error}}}
    for path, (summary, request, response) in _POSTS.items():
        body = {"content": {"application/json": {"schema": schema_of[repr(request)]}}}
        ok = _content("the answer; events of it with stream=true", schema_of[repr(response)])
        paths[path] = {
            "post": {
                "summary": summary,
                "requestBody": {"required": True, **body},
                "responses": {"200": ok, "default": error},
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def _content(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def html_page() -> str:
    """The same for people, with nothing loaded from elsewhere."""
    parts = [
        "<!doctype html><meta charset=utf-8><title>Octavo API</title>",
        "<style>body{font:16px/1.5 system-ui;max-width:60em;margin:2em auto;padding:0 1em}"
        "pre{background:#8882;padding:1em;white-space:pre-wrap}</style>",
        f"<h1>Octavo {html.escape(__version__)}</h1>",
        "<p>The OpenAI API. Machines read <a href=openapi.json>openapi.json</a>.</p>",
    ]
    for path, (summary, _) in _GETS.items():
        parts.append(f"<h2>GET {path}</h2><p>{html.escape(summary)}.</p>")
    for path, (summary, request, _) in _POSTS.items():
        docs = html.escape(inspect.getdoc(request) or "")
        fields = html.escape(", ".join(request.__struct_fields__))
        parts.append(f"<h2>POST {path}</h2><p>{html.escape(summary)}.</p>")
        parts.append(f"<pre>{docs}\n\nAll fields: {fields}</pre>")
    return "\n".join(parts)
