"""Requests for resumable streams."""

from __future__ import annotations

from typing import Any

from tests.entrypoints.openai.harness import Running
from tests.entrypoints.openai.sse_client import Event, parse

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ENDLESS: dict[str, Any] = {"prompt": "count", "max_tokens": 3000, "ignore_eos": True}


def chat_body(content: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "stream": True, "resumable": True, **fields}


def body(prompt: str = "SAY:hello", **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "stream": True, "resumable": True, **fields}


async def again(s: Running, stream_id: str, **headers: str) -> list[Event]:
    """The events that resuming gives."""
    reply = await s.get(f"/v1/streams/{stream_id}", **headers)
    assert reply.status == 200, reply.body
    return parse(reply.body)
