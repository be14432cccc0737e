from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.entrypoints.openai.harness import MODEL, serving
from tests.entrypoints.openai.test_embeddings import expected

QUERY = "abc"
DOCUMENTS = ["hij", "abc", "abcd", "cba"]  # the same bytes modulo 8, at first


def cosine(a: str, b: str) -> float:
    return float(np.dot(expected(list(a.encode())), expected(list(b.encode()))))


async def test_score() -> None:
    async with serving() as s:
        for path in ("/score", "/v1/score"):
            for names in (("text_1", "text_2"), ("queries", "documents")):
                body = dict(zip(names, (QUERY, DOCUMENTS)))
                reply = (await s.post(path, {"model": MODEL, **body})).json
                assert reply["object"] == "list"
                assert [d["index"] for d in reply["data"]] == [0, 1, 2, 3]
                scores = [d["score"] for d in reply["data"]]
                np.testing.assert_allclose(scores, [cosine(QUERY, d) for d in DOCUMENTS], rtol=1e-6)
                assert all(-1 <= score <= 1 for score in scores)
                assert reply["usage"]["total_tokens"] == 3 + 13
        reply = (await s.post("/score", {"text_1": ["ab", "x"], "text_2": ["ab", "y"]})).json
        scores = [d["score"] for d in reply["data"]]
        np.testing.assert_allclose(scores, [1.0, cosine("x", "y")], rtol=1e-6)


async def test_rerank() -> None:
    async with serving() as s:
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            body: dict[str, Any] = {"model": MODEL, "query": QUERY, "documents": DOCUMENTS}
            reply = (await s.post(path, body)).json
            order = [r["index"] for r in reply["results"]]
            assert order == [1, 3, 2, 0]  # equal ones as they came
            scores = [r["relevance_score"] for r in reply["results"]]
            assert scores == sorted(scores, reverse=True)
            assert [r["document"]["text"] for r in reply["results"]] == [
                DOCUMENTS[i] for i in order
            ]
        body |= {"top_n": 2, "return_documents": False, "documents": [{"text": "x"}, *DOCUMENTS]}
        reply = (await s.post("/rerank", body)).json
        assert [r["index"] for r in reply["results"]] == [2, 4]
        assert all(r["document"] is None for r in reply["results"])


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/score", {}, "text_1"),
        ("/score", {"text_1": "a"}, "text_2"),
        ("/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/score", {"text_1": "a", "text_2": "b", "queries": "c"}, "text_1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"),
        ("/score", {"queries": "a", "documents": ["b", ""]}, "documents"),
        ("/score", {"text_1": 1, "text_2": "b"}, "text_1"),
        ("/score", {"text_1": "a", "text_2": ["b"] * 2048}, "text_1"),
        ("/rerank", {"documents": ["a"]}, "query"),
        ("/rerank", {"query": "a", "documents": []}, "documents"),
        ("/rerank", {"query": "a", "documents": [{"title": "b"}]}, "documents"),
        ("/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ("/rerank", {"query": "a", "documents": ["b"], "max_tokens_per_doc": 9}, None),
    ],
)
async def test_wrong_requests(path: str, body: dict[str, Any], param: str | None) -> None:
    async with serving() as s:
        reply = await s.post(path, body)
        assert reply.status == 400, reply.body
        assert param is None or reply.error["param"] == param, reply.body
