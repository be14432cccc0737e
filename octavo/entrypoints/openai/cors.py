"""Which web pages may use the server from a browser (CORS). None but its own, unless told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from octavo.entrypoints.openai.errors import APIError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from octavo.entrypoints.openai.config import ServerConfig

_EXPOSED = (
    *("x-request-id", "x-stream-id", "retry-after"),
    *(
        f"x-ratelimit-{what}-{kind}"
        for what in ("limit", "remaining", "reset")
        for kind in ("requests", "tokens")
    ),
)
"""Headers that a page may read, besides those that it always may."""


_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({b"same-origin", b"none"})
"""Values of Sec-Fetch-Site (W3C Fetch Metadata): a page of this server, or the user's own doing."""


def refuse_foreign_page(
    method: str, headers: Iterable[tuple[bytes, bytes]], config: ServerConfig
) -> None:
    """Raise APIError 403 for what a page of another origin makes a browser do.

    It may not read the answer, but forms and the like are sent without asking (no preflight), and
    a server without keys would do as they say. Only browsers send the header that tells.
    """
    found = dict(headers)
    site = found.get(b"sec-fetch-site")
    if method in _SAFE_METHODS or site is None or site in _OWN_SITES:
        return
    allowed = config.allowed_origins or ()
    if "*" not in allowed and found.get(b"origin", b"").decode("latin-1") not in allowed:
        raise APIError(
            403,
            "pages of other origins may not use this server; start it with --allowed-origins to "
            "let one",
            code="foreign_page",
        )


def with_cors(app: ASGIApp, config: ServerConfig) -> ASGIApp:
    """`app`, open to pages of the configured origins. It is around the check of API keys, which a
    browser's question whether it may ask does not have."""
    if not config.allowed_origins:
        return app
    from starlette.middleware.cors import CORSMiddleware

    return CORSMiddleware(
        app,
        allow_origins=config.allowed_origins,
        allow_methods=config.allowed_methods or ["*"],
        allow_headers=config.allowed_headers or ["*"],
        allow_credentials=config.allow_credentials,
        expose_headers=_EXPOSED,
    )
