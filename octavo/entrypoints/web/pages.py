"""GET / (playground), GET /dashboard, and the files that both load. None of them needs a key: they
hold nothing of the server's, and ask for the key themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from octavo.entrypoints.web.assets import PAGES, Asset

if TYPE_CHECKING:
    from starlette.requests import Request


def page_routes(assets: Mapping[str, Asset]) -> list[Route]:
    """The routes of `assets` (`load_assets`)."""

    async def page(request: Request) -> Response:
        asset = assets.get(request.url.path)
        if asset is None:
            raise HTTPException(404)
        return answer(asset, request.headers)

    return [Route(path, page) for path in (*PAGES, "/static/{name:path}")]


def answer(asset: Asset, headers: Mapping[str, str]) -> Response:
    """A file, or 304 where the client has it."""
    if asset.etag in headers.get("if-none-match", ""):
        return Response(status_code=304, headers=asset.headers)
    if "gzip" in headers.get("accept-encoding", ""):
        return Response(asset.gzipped, headers=asset.headers | {"content-encoding": "gzip"})
    return Response(asset.body, headers=asset.headers)
