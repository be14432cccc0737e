"""POST /tokenize, POST /detokenize, and what there is to know of a tokenizer."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from octavo.entrypoints.openai.answers import DetokenizeResponse, TokenizeResponse
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.chat_prompt import render_chat
from octavo.entrypoints.openai.errors import bad_request, json_response
from octavo.entrypoints.openai.parsing import parse_body
from octavo.entrypoints.openai.protocol import (
    TOKENIZE_UNSUPPORTED,
    DetokenizeRequest,
    TokenizeRequest,
)
from octavo.errors import shown

if TYPE_CHECKING:
    from starlette.responses import Response

    from octavo.entrypoints.openai.endpoint import Call


async def tokenize(call: Call) -> Response:
    """Text, or chat messages through the template, to token ids."""
    request = parse_body(call.take_body(), TokenizeRequest, TOKENIZE_UNSUPPORTED)
    model = call.server.model(request.model)
    if (request.prompt is None) == (request.messages is None):
        raise bad_request("give either prompt or messages", "prompt")
    if request.prompt is not None:
        special = request.add_special_tokens is not False
        await model.engine.check_num_chars(len(request.prompt), "prompt")
        ids = await model.engine.tokenize(request.prompt, add_special_tokens=special)
    else:
        ids = await render_chat(request, model)
    strings = [model.tokens.spell(i).completion for i in ids] if request.return_token_strs else None
    return json_response(
        TokenizeResponse(
            count=len(ids), max_model_len=model.max_model_len, tokens=ids, token_strs=strings
        )
    )


async def detokenize(call: Call) -> Response:
    """Token ids to text, special tokens included."""
    request = parse_body(call.take_body(), DetokenizeRequest, {})
    model = call.server.model(request.model)
    if len(request.tokens) > model.max_model_len:
        raise bad_request(
            f"tokens has {len(request.tokens)} ids, more than max_model_len={model.max_model_len}",
            "tokens",
        )
    size = model.engine.info.vocab_size
    for i in (min(request.tokens, default=0), max(request.tokens, default=0)):
        if not 0 <= i < size:
            raise bad_request(
                f"tokens holds {shown(i)}; the model's ids are 0…{size - 1}", "tokens"
            )
    decode = partial(model.engine.tokenizer.decode, skip_special_tokens=False)
    return json_response(DetokenizeResponse(prompt=await asyncio.to_thread(decode, request.tokens)))


async def tokenizer_info(call: Call) -> Response:
    """The first model's tokenizer, its chat template included."""
    model = call.server.model(None)
    sizes = {"model_max_length": model.max_model_len, "vocab_size": model.engine.info.vocab_size}
    return json_response({**model.engine.tokenizer.config, **sizes})


INFO_ROUTES = (
    APIRoute(
        method="GET",
        path="/tokenizer_info",
        summary="The tokenizer's configuration, chat template included",
        handler=tokenizer_info,
        response=dict[str, Any],
    ),
)
"""With --enable-tokenizer-info-endpoint."""

ROUTES = (
    APIRoute(
        method="POST",
        path="/tokenize",
        summary="Text or messages to token ids",
        handler=tokenize,
        request=TokenizeRequest,
        unsupported=TOKENIZE_UNSUPPORTED,
        response=TokenizeResponse,
        queued=True,
    ),
    APIRoute(
        method="POST",
        path="/detokenize",
        summary="Token ids to text",
        handler=detokenize,
        request=DetokenizeRequest,
        response=DetokenizeResponse,
        queued=True,
    ),
)
