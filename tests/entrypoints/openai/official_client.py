"""OpenAI's own client, unmodified."""

from __future__ import annotations

from openai import AsyncOpenAI

from tests.entrypoints.openai.harness import Running


def client_of(s: Running, key: str = "none") -> AsyncOpenAI:
    """For a server of `serving`; it never tries again."""
    return AsyncOpenAI(base_url=s.url + "/v1", api_key=key, max_retries=0)
