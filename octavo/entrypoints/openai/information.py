"""What the server tells of itself: health, version, metrics, the served models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from octavo.entrypoints.openai.answers import Health, Load, ModelCard, ModelList, Version
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.errors import json_response, unavailable
from octavo.entrypoints.openai.siblings import ask_all, ask_each
from octavo.version import __version__

if TYPE_CHECKING:
    from octavo.entrypoints.openai.endpoint import Call
    from octavo.entrypoints.openai.state import ServedModel


async def health(call: Call) -> Response:
    """Whether requests are taken."""
    for engine in call.server.engines.values():
        await engine.check_health()
    if call.server.admission.draining:
        raise unavailable("the server is stopping", "draining")
    return json_response(Health())


async def load(call: Call) -> Response:
    """HTTP requests in progress, this one apart."""
    others = [msgspec.json.decode(body, type=Load) for body in await ask_all(call)]
    own = call.server.in_flight - 1
    return json_response(Load(own + sum(other.server_load for other in others)))


async def version(call: Call) -> Response:
    """The server's version."""
    return json_response(Version(version=__version__))


async def metrics(call: Call) -> Response:
    """Prometheus's text, or OpenMetrics where the client asks for that."""
    from octavo.entrypoints.openai.front_end_metrics import SECONDS, FrontEndMetrics
    from octavo.entrypoints.openai.metrics import expose

    server = call.server
    others = server.front_end_metrics = server.front_end_metrics or FrontEndMetrics()
    others.hear(await ask_each(call, seconds=SECONDS))
    body, content_type = expose(server, call.header("accept"), others)
    return Response(body, headers={"content-type": content_type})


async def models(call: Call) -> Response:
    """All served models."""
    return json_response(ModelList(data=[_card(m) for m in call.server.models.values()]))


async def model(call: Call) -> Response:
    """One of them."""
    return json_response(_card(call.server.model(call.path_params["name"])))


def _card(model: ServedModel) -> ModelCard:
    return ModelCard(
        id=model.name,
        created=model.created,
        root=model.engine.config.model.model,
        max_model_len=model.max_model_len,
    )


ROUTES = (
    APIRoute(
        method="GET",
        path="/health",
        summary="200 while the server takes requests",
        handler=health,
        response=Health,
    ),
    APIRoute(
        method="GET",
        path="/ping",
        summary="The same as /health, behind the key",
        handler=health,
        response=Health,
    ),
    APIRoute(
        method="POST",
        path="/ping",
        summary="The same as /health, behind the key",
        handler=health,
        response=Health,
    ),
    APIRoute(
        method="GET",
        path="/load",
        summary="How many requests are in progress",
        handler=load,
        response=Load,
    ),
    APIRoute(
        method="GET",
        path="/version",
        summary="The server's version",
        handler=version,
        response=Version,
    ),
    APIRoute(
        method="GET",
        path="/metrics",
        summary="Prometheus metrics",
        handler=metrics,
        response=str,
        media_type="text/plain",
    ),
    APIRoute(
        method="GET",
        path="/v1/models",
        summary="The served models",
        handler=models,
        response=ModelList,
    ),
    APIRoute(
        method="GET",
        path="/v1/models/{name:path}",
        summary="One served model",
        handler=model,
        response=ModelCard,
        errors=(404,),
    ),
)
