"""The ASGI application: routes, errors, and the gate around them.

Starlette rather than FastAPI: bodies are parsed and written by msgspec, which FastAPI would do a
second time with pydantic; and FastAPI takes 0.16 s more to import and brings six more packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from octavo.entrypoints.openai.answers import ModelCard, ModelList
from octavo.entrypoints.openai.chat import create_chat_completion
from octavo.entrypoints.openai.completions import create_completion
from octavo.entrypoints.openai.endpoint import Endpoint
from octavo.entrypoints.openai.errors import APIError, as_api_error, json_response, unavailable
from octavo.entrypoints.openai.gate import Gate
from octavo.entrypoints.openai.tokenization import detokenize, tokenize
from octavo.errors import OctavoError, shown
from octavo.version import __version__

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from octavo.entrypoints.openai.state import ServedModel, Server


def build_app(server: Server) -> ASGIApp:
    """The application that serves `server`."""
    routes = [
        *_information(server),
        Route("/v1/chat/completions", Endpoint(server, create_chat_completion), methods=["POST"]),
        Route("/v1/completions", Endpoint(server, create_completion), methods=["POST"]),
        Route("/tokenize", Endpoint(server, tokenize), methods=["POST"]),
        Route("/detokenize", Endpoint(server, detokenize), methods=["POST"]),
    ]
    if not server.config.disable_fastapi_docs:
        routes += _documentation()
    app = Starlette(
        routes=routes,
        exception_handlers={
            APIError: _answer_error,
            OctavoError: _answer_error,
            HTTPException: _answer_http_error,
            Exception: _answer_error,
        },
    )
    app.router.redirect_slashes = False
    return Gate(app, server, frozenset(route.path for route in routes))


def _information(server: Server) -> list[Route]:
    async def health(request: Request) -> Response:
        for engine in server.engines.values():
            await engine.check_health()
        if server.admission.draining:
            raise unavailable("the server is stopping", "draining")
        return json_response({"status": "ok"})

    async def version(request: Request) -> Response:
        return json_response({"version": __version__})

    async def metrics(request: Request) -> Response:
        from octavo.entrypoints.openai.metrics import expose

        body, content_type = expose(server, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    async def models(request: Request) -> Response:
        return json_response(ModelList(data=[_card(m) for m in server.models.values()]))

    async def model(request: Request) -> Response:
        return json_response(_card(server.model(request.path_params["name"])))

    return [
        Route("/health", health),
        Route("/version", version),
        Route("/metrics", metrics),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
    ]


def _documentation() -> list[Route]:
    async def openapi(request: Request) -> Response:
        from octavo.entrypoints.openai.openapi import openapi_document

        return json_response(openapi_document())

    async def docs(request: Request) -> Response:
        from octavo.entrypoints.openai.openapi import html_page

        return Response(html_page(), media_type="text/html")

    return [Route("/openapi.json", openapi), Route("/docs", docs)]


def _card(model: ServedModel) -> ModelCard:
    return ModelCard(
        id=model.name,
        created=model.created,
        root=model.engine.config.model.model,
        max_model_len=model.max_model_len,
    )


async def _answer_error(request: Request, error: Exception) -> Response:
    return as_api_error(error).response()


async def _answer_http_error(request: Request, error: Any) -> Response:
    """Starlette's own: unknown routes and methods."""
    path = shown(request.url.path)
    if error.status_code == 404:
        message = f"there is no {path} here"
    elif error.status_code == 405:
        message = f"{request.method} is not allowed for {path}"
    else:
        message = str(error.detail)
    return APIError(error.status_code, message, headers=error.headers).response()
