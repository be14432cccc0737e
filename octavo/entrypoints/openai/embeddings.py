"""POST /v1/embeddings and POST /pooling."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from octavo.contracts.pooling_params import PoolingParams
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.chat_prompt import render_chat
from octavo.entrypoints.openai.completions import read_prompts
from octavo.entrypoints.openai.errors import bad_request, json_response
from octavo.entrypoints.openai.parsing import parse_body
from octavo.entrypoints.openai.pooling_protocol import (
    CHAT_FIELDS,
    UNSUPPORTED,
    Embedding,
    EmbeddingList,
    EmbeddingRequest,
    Pooled,
    PooledList,
    PoolingRequest,
)
from octavo.entrypoints.openai.protocol import TokenizeRequest
from octavo.entrypoints.openai.vectors import MAX_INPUTS, Vectors

if TYPE_CHECKING:
    import numpy as np
    from starlette.responses import Response

    from octavo.entrypoints.openai.endpoint import Call
    from octavo.entrypoints.openai.state import ServedModel


async def create_embedding(call: Call) -> Response:
    """The vectors of texts, as OpenAI gives them."""
    request = parse_body(call.take_body(), EmbeddingRequest, UNSUPPORTED)
    vectors, values = await _vectors(call, request, "embd-", "embed")
    return json_response(
        EmbeddingList(
            id=vectors.public_id,
            created=vectors.created,
            model=vectors.model.name,
            data=[Embedding(index=i, embedding=value) for i, value in enumerate(values)],
            usage=vectors.usage,
        )
    )


async def pool(call: Call) -> Response:
    """The same, as vLLM's /pooling gives them."""
    request = parse_body(call.take_body(), PoolingRequest, UNSUPPORTED)
    vectors, values = await _vectors(call, request, "pool-", request.task or "embed")
    return json_response(
        PooledList(
            id=vectors.public_id,
            created=vectors.created,
            model=vectors.model.name,
            data=[Pooled(index=i, data=value) for i, value in enumerate(values)],
            usage=vectors.usage,
        )
    )


async def _vectors(
    call: Call, request: EmbeddingRequest, id_prefix: str, task: str
) -> tuple[Vectors, list[list[float] | str]]:
    model = call.server.model(request.model)
    params = PoolingParams(
        task=task,
        pooling_type=request.pooling_type,
        dimensions=request.dimensions,
        normalize=request.normalize is not False,
    )
    vectors = Vectors.begin(call, request, model, params, id_prefix)
    arrays = await vectors.of(await _prompts(request, model))
    as_base64 = request.encoding_format == "base64"
    return vectors, [_base64(array) if as_base64 else array.tolist() for array in arrays]


async def _prompts(
    request: EmbeddingRequest, model: ServedModel
) -> list[tuple[str, str | list[int]]]:
    """(the request's field, the prompt) pairs. Raises APIError, RequestError."""
    if (request.input is None) == (request.messages is None):
        raise bad_request("give either input or messages", "input")
    if request.messages is None:
        for name in CHAT_FIELDS:
            if getattr(request, name) is not None:
                raise bad_request(f"{name} needs messages", name)
        return [("input", p) for p in read_prompts(request.input, "input", most=MAX_INPUTS)]
    chat = TokenizeRequest(
        messages=request.messages,
        add_special_tokens=request.add_special_tokens,
        add_generation_prompt=bool(request.add_generation_prompt),
        continue_final_message=request.continue_final_message,
        chat_template_kwargs=request.chat_template_kwargs,
    )
    return [("messages", await render_chat(chat, model))]


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


ROUTES = (
    APIRoute(
        method="POST",
        path="/v1/embeddings",
        summary="Vectors of texts",
        handler=create_embedding,
        request=EmbeddingRequest,
        unsupported=UNSUPPORTED,
        response=EmbeddingList,
        queued=True,
    ),
    APIRoute(
        method="POST",
        path="/pooling",
        summary="Vectors of texts, in vLLM's shape",
        handler=pool,
        request=PoolingRequest,
        unsupported=UNSUPPORTED,
        response=PooledList,
        queued=True,
    ),
)
