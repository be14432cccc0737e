"""GET / (playground), GET /dashboard, and the files that both load. None of them needs a key: they
hold nothing of the server's, and ask for the key themselves."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response

from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.web.assets import load_assets
from octavo.entrypoints.web.encoding import takes_gzip

if TYPE_CHECKING:
    from octavo.entrypoints.openai.endpoint import Call

_assets = cache(load_assets)  # read when the first page is asked for


async def page(call: Call) -> Response:
    """A page or one of its files; 304 where the client has it."""
    asset = _assets().get(call.scope["path"])
    if asset is None:
        raise HTTPException(404)
    if asset.etag in call.header("if-none-match"):
        return Response(status_code=304, headers=asset.headers)
    if takes_gzip(call.header("accept-encoding")):
        return Response(asset.gzipped, headers=asset.headers | {"content-encoding": "gzip"})
    return Response(asset.body, headers=asset.headers)


ROUTES = (
    APIRoute(
        method="GET",
        path="/",
        summary="The playground, a page",
        handler=page,
        response=str,
        media_type="text/html",
    ),
    APIRoute(
        method="GET",
        path="/dashboard",
        summary="The dashboard, a page",
        handler=page,
        response=str,
        media_type="text/html",
    ),
    APIRoute(
        method="GET",
        path="/static/{name:path}",
        summary="What the pages load",
        handler=page,
        response=str,
        media_type="*/*",
        errors=(404,),
    ),
)
