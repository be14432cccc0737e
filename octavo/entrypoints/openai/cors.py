"""Which web pages may use the server from a browser (CORS). None, unless told."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
