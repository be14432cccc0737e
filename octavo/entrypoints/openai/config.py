"""The server's configuration, apart from the rest because it is needed before heavy imports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The HTTP server's own configuration.

    Attributes:
        api_keys: any of them opens every route but /health; none: all is open.
        max_num_queued_reqs, max_num_queued_tokens: see `admission`; 0 is no limit.
        max_request_bytes: largest body.
        max_logprobs: most alternatives per token; -1 is all.
        body_timeout: seconds for a body to arrive.
        stall_timeout: seconds for which a stream's client may take nothing before it is dropped.
        docs: serve /docs and /openapi.json.
    """

    api_keys: tuple[str, ...] = ()
    max_num_queued_reqs: int = 1024
    max_num_queued_tokens: int = 0
    max_request_bytes: int = 16 * 2**20
    max_logprobs: int = 20
    body_timeout: float = 60.0
    stall_timeout: float = 60.0
    docs: bool = True
