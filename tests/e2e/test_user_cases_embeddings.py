"""Case 40 (dynamo#10248, vllm#57498, #57927, #55192): embeddings of the default model over HTTP."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.entrypoints.openai.live import Live, live

pytestmark = pytest.mark.model

LONG = "The quick brown fox jumps over the lazy dog while the sun sets behind the hills. " * 5


@pytest.fixture(scope="module")
def server(smollm2_path: Any) -> Iterator[Live]:
    """Steps of 16 tokens, so that the long text takes several, and a pool for few requests."""
    options = ["--max-num-batched-tokens=16", "--kv-cache-memory-bytes=15000000"]
    with live(str(smollm2_path), "--max-model-len=256", *options) as server:
        yield server


def embed(server: Live, given: Any, **fields: Any) -> list[Any]:
    reply = server.post("/v1/embeddings", {"input": given, **fields})
    assert reply.status == 200, reply.body
    data = reply.json["data"]
    assert [d["index"] for d in data] == list(range(len(data)))
    return [d["embedding"] for d in data]


@pytest.mark.parametrize("kind", ["LAST", "MEAN", "CLS"])
def test_right(server: Live, kind: str) -> None:
    (hi,) = embed(server, "hi", pooling_type=kind)
    (long,) = embed(server, LONG, pooling_type=kind)
    for vector in (hi, long):
        assert len(vector) == 576
        assert abs(np.linalg.norm(vector) - 1) < 1e-4
    assert embed(server, ["hi", LONG], pooling_type=kind) == [hi, long]
    assert embed(server, [LONG, "hi"], pooling_type=kind) == [long, hi]
    ids = [server.tokens_of(prompt=text) for text in ("hi", LONG)]
    assert len(ids[1]) >= 80
    assert embed(server, ids, pooling_type=kind) == [hi, long]
    assert embed(server, ids[1], pooling_type=kind) == [long]
    (packed,) = embed(server, LONG, pooling_type=kind, encoding_format="base64")
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == long
    (short,) = embed(server, LONG, pooling_type=kind, dimensions=64)
    assert len(short) == 64
    assert abs(np.linalg.norm(short) - 1) < 1e-4
    # Many at once, more than the pool holds.
    assert embed(server, [LONG, "hi"] * 6, pooling_type=kind) == [long, hi] * 6


def test_wrong(server: Live) -> None:
    for given in ("", [], [""], [[]], [["a"]], None):
        assert server.post("/v1/embeddings", {"input": given}).status == 400
    for dimensions in (0, -1, 577, 1.5, "64"):
        body = {"input": "hi", "dimensions": dimensions}
        assert server.post("/v1/embeddings", body).status == 400
    assert server.post("/v1/embeddings", {"input": "word " * 999}).status == 400


def test_scores_and_ranks(server: Live) -> None:
    documents = ["I like cats.", "The weather is bad.", "I like cats"]
    body = {"query": "I like cats.", "documents": documents, "pooling_type": "MEAN"}
    results = server.post("/v1/rerank", body).json["results"]
    assert [r["index"] for r in results] == [0, 2, 1]
    assert results[0]["relevance_score"] == pytest.approx(1.0)
    body = {"text_1": "I like cats.", "text_2": documents, "pooling_type": "MEAN"}
    scores = [d["score"] for d in server.post("/score", body).json["data"]]
    assert sorted(scores, reverse=True) == [r["relevance_score"] for r in results]
