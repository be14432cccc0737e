"""The ASGI application: routes, errors, and the gate around them.

Starlette rather than FastAPI: bodies are parsed and written by msgspec, which FastAPI would do a
second time with pydantic; and FastAPI takes 0.16 s more to import and brings six more packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from octavo.entrypoints.anthropic import messages
from octavo.entrypoints.anthropic.errors import error_response
from octavo.entrypoints.batches import batches, files
from octavo.entrypoints.openai import (
    admin,
    chat,
    completions,
    derender,
    embeddings,
    generate,
    information,
    invocations,
    render,
    scoring,
    streams,
    tokenization,
)
from octavo.entrypoints.openai.cors import with_cors
from octavo.entrypoints.openai.endpoint import Endpoint
from octavo.entrypoints.openai.errors import APIError, as_api_error
from octavo.entrypoints.openai.gate import Gate
from octavo.entrypoints.openai.openapi import documentation_routes
from octavo.entrypoints.openai.unsupported_routes import no_such_route
from octavo.entrypoints.responses import routes as responses
from octavo.entrypoints.web import engine_state, pages
from octavo.errors import OctavoError, shown

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from octavo.entrypoints.openai.api_route import APIRoute
    from octavo.entrypoints.openai.state import Server


ROUTES: tuple[APIRoute, ...] = (
    *information.ROUTES,
    *chat.ROUTES,
    *completions.ROUTES,
    *streams.ROUTES,
    *generate.ROUTES,
    *render.ROUTES,
    *derender.ROUTES,
    *embeddings.ROUTES,
    *scoring.ROUTES,
    *invocations.ROUTES,
    *tokenization.ROUTES,
    *engine_state.ROUTES,
    *pages.ROUTES,
    *messages.ROUTES,
    *responses.ROUTES,
    *files.ROUTES,
    *batches.ROUTES,
)
"""All routes but those that need a flag, and those of the documentation."""


def build_app(server: Server) -> ASGIApp:
    """The application that serves `server`."""
    routes = ROUTES
    if server.config.server_dev_mode:
        routes += admin.ROUTES
    if server.config.enable_tokenizer_info_endpoint:
        routes += tokenization.INFO_ROUTES
    if not server.config.disable_fastapi_docs:
        routes += documentation_routes(routes)
    app = Starlette(
        routes=[Route(r.path, Endpoint(server, r), methods=[r.method]) for r in routes],
        exception_handlers={
            APIError: _answer_error,
            OctavoError: _answer_error,
            HTTPException: _answer_http_error,
            Exception: _answer_error,
        },
    )
    app.router.redirect_slashes = False
    gate = Gate(app, server, frozenset(route.path for route in routes))
    return with_cors(gate, server.config)


async def _answer_error(request: Request, error: Exception) -> Response:
    return error_response(as_api_error(error), request.scope)


async def _answer_http_error(request: Request, error: Any) -> Response:
    """Starlette's own: unknown routes and methods."""
    path = request.scope["path"]
    if error.status_code == 404:
        return error_response(no_such_route(path), request.scope)
    message = str(error.detail)
    if error.status_code == 405:
        message = f"{request.method} is not allowed for {shown(path)}"
    failure = APIError(error.status_code, message, headers=error.headers)
    return error_response(failure, request.scope)
