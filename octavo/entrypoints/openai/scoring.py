"""POST /score and POST /rerank: how near texts are, by the cosine of their vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.contracts.pooling_params import PoolingParams
from octavo.engine.pooling import cosine
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.errors import bad_request, json_response
from octavo.entrypoints.openai.parsing import parse_body
from octavo.entrypoints.openai.pooling_protocol import (
    UNSUPPORTED,
    DocumentText,
    RankedDocument,
    RankedList,
    RerankRequest,
    Score,
    ScoreList,
    ScoreRequest,
)
from octavo.entrypoints.openai.vectors import Vectors

if TYPE_CHECKING:
    from starlette.responses import Response

    from octavo.entrypoints.openai.endpoint import Call


async def score(call: Call) -> Response:
    """Pairs of texts."""
    request = parse_body(call.take_body(), ScoreRequest, UNSUPPORTED)
    model = call.server.model(request.model)
    (name_1, first), (name_2, second) = _pairs(request)
    params = PoolingParams(pooling_type=request.pooling_type)
    vectors = Vectors.begin(call, request, model, params, "score-")
    arrays = await vectors.of([*((name_1, t) for t in first), *((name_2, t) for t in second)])
    one, two = arrays[: len(first)], arrays[len(first) :]
    return json_response(
        ScoreList(
            id=vectors.public_id,
            created=vectors.created,
            model=model.name,
            data=[
                Score(index=i, score=cosine(one[i if len(one) > 1 else 0], vector))
                for i, vector in enumerate(two)
            ],
            usage=vectors.usage,
        )
    )


def _pairs(request: ScoreRequest) -> tuple[tuple[str, list[str]], tuple[str, list[str]]]:
    """(field, texts) of both sides. Raises APIError."""
    names = ("text_1", "text_2"), ("queries", "documents")
    given = [pair for pair in names if any(getattr(request, name) is not None for name in pair)]
    if len(given) != 1:
        raise bad_request("give either text_1 and text_2, or queries and documents", "text_1")
    sides = []
    for name in given[0]:
        value = getattr(request, name)
        texts = [value] if isinstance(value, str) else value
        if not texts:
            raise bad_request(f"{name} must be a text, or a list of texts that is not empty", name)
        sides.append((name, texts))
    (name_1, first), (name_2, second) = sides
    if len(first) not in (1, len(second)):
        raise bad_request(
            f"{name_1} has {len(first)} texts and {name_2} {len(second)}; give one in {name_1}, or "
            "as many",
            name_1,
        )
    return sides[0], sides[1]


async def rerank(call: Call) -> Response:
    """Documents by how near they are to a query, in the shape of Cohere's and Jina's APIs."""
    request = parse_body(call.take_body(), RerankRequest, UNSUPPORTED)
    model = call.server.model(request.model)
    if request.top_n is not None and request.top_n < 1:
        raise bad_request(f"top_n={request.top_n} must be at least 1", "top_n")
    if not request.documents:
        raise bad_request("documents must not be empty", "documents")
    texts = [d if isinstance(d, str) else d.text for d in request.documents]
    params = PoolingParams(pooling_type=request.pooling_type)
    vectors = Vectors.begin(call, request, model, params, "rerank-")
    query, *arrays = await vectors.of(
        [("query", request.query), *(("documents", t) for t in texts)]
    )
    scores = [cosine(query, array) for array in arrays]
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: request.top_n]
    shows = request.return_documents is not False
    return json_response(
        RankedList(
            id=vectors.public_id,
            model=model.name,
            results=[
                RankedDocument(
                    index=i,
                    relevance_score=scores[i],
                    document=DocumentText(texts[i]) if shows else None,
                )
                for i in order
            ],
            usage=vectors.usage,
        )
    )


ROUTES = (
    *(
        APIRoute(
            method="POST",
            path=path,
            summary="How near texts are",
            handler=score,
            request=ScoreRequest,
            unsupported=UNSUPPORTED,
            response=ScoreList,
            queued=True,
        )
        for path in ("/score", "/v1/score")
    ),
    *(
        APIRoute(
            method="POST",
            path=path,
            summary="Documents by how near they are to a query",
            handler=rerank,
            request=RerankRequest,
            unsupported=UNSUPPORTED,
            response=RankedList,
            queued=True,
        )
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    ),
)
