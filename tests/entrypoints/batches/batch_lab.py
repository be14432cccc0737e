"""Batch inputs and outputs for tests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any

from openai import AsyncOpenAI
from openai.types import Batch

from tests.entrypoints.openai.harness import MODEL

CHAT = "/v1/chat/completions"
OVER = ("completed", "failed", "expired", "cancelled")


def chat_line(custom_id: str, content: str, **fields: Any) -> dict[str, Any]:
    """A line for the fake engine, which answers what stands after SAY:."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def say_lines(count: int, **fields: Any) -> list[dict[str, Any]]:
    """Lines r0, r1 …, each with its own answer."""
    return [chat_line(f"r{i}", f"SAY:answer {i}", **fields) for i in range(count)]


def jsonl(lines: Iterable[Any]) -> bytes:
    """A file of these."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def parsed(content: bytes) -> list[Any]:
    """The lines of a file, all of which must be whole."""
    assert content.endswith(b"\n") or not content
    return [json.loads(line) for line in content.splitlines()]


def said(result: dict[str, Any]) -> str:
    """What a line of an output file says."""
    text: str = result["response"]["body"]["choices"][0]["message"]["content"]
    return text


async def create(client: AsyncOpenAI, lines: Iterable[Any] | bytes, **options: Any) -> Batch:
    """Upload and begin."""
    content = lines if isinstance(lines, bytes) else jsonl(lines)
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id,
        **{"endpoint": CHAT, "completion_window": "24h", **options},
    )


async def until(client: AsyncOpenAI, batch_id: str, *statuses: str) -> Batch:
    """The batch, once it has one of these statuses (or has ended)."""
    deadline = time.monotonic() + 30
    while True:
        batch = await client.batches.retrieve(batch_id)
        if batch.status in statuses:
            return batch
        assert batch.status not in OVER, batch
        assert time.monotonic() < deadline, batch
        await asyncio.sleep(0.01)


async def content_of(client: AsyncOpenAI, file_id: str | None) -> list[Any]:
    """The lines of a file; none where there is no file."""
    if file_id is None:
        return []
    return parsed((await client.files.content(file_id)).content)
