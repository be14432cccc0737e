"""Tensors of a client never reach the engine (CVE-2025-62164 and the two after it): prompts are
texts or ids. What brings others is refused by name, wherever it stands."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.entrypoints.openai.harness import serving

TENSOR = base64.b64encode(b"PK\x03\x04archive/data.pkl\x80\x02cos\nsystem\n").decode()
USER = [{"role": "user", "content": "x"}]
PART = [{"type": "prompt_embeds", "data": TENSOR}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x", "prompt_embeds": TENSOR}, "prompt_embeds"),
        ("/v1/completions", {"prompt": None, "prompt_embeds": [TENSOR]}, "prompt_embeds"),
        ("/v1/completions", {"prompt": {"prompt_embeds": TENSOR}}, "prompt"),
        ("/v1/completions", {"prompt": [{"prompt_embeds": TENSOR}]}, "prompt"),
        ("/v1/completions", {"prompt": [[1.5, 2.5]]}, "prompt"),
        ("/v1/chat/completions", {"messages": USER, "prompt_embeds": TENSOR}, "prompt_embeds"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PART}]}, "messages"),
        ("/v1/embeddings", {"input": {"prompt_embeds": TENSOR}}, "input"),
        ("/v1/embeddings", {"messages": [{"role": "user", "content": PART}]}, "messages"),
        ("/v1/responses", {"input": [{"role": "user", "content": PART}]}, "input"),
        ("/inference/v1/generate", {"token_ids": [1], "prompt_embeds": TENSOR}, "prompt_embeds"),
        ("/inference/v1/generate", {"token_ids": [1], "features": {"x": TENSOR}}, "features"),
        ("/inference/v1/generate", {"token_ids": [1.5]}, "token_ids"),
        ("/invocations", {"prompt": "x", "prompt_embeds": TENSOR}, "prompt_embeds"),
    ],
    ids=str,
)
async def test_refused_by_name(path: str, body: dict[str, Any], param: str) -> None:
    async with serving() as s:
        reply = await s.post(path, body)
        assert (reply.status, reply.error["param"]) == (400, param), reply.body
