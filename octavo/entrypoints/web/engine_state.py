"""GET /v1/engine/state: what the dashboard draws. Nothing of what requests say is in it."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from octavo.contracts.engine_view import EngineView
from octavo.contracts.kv_spec import BLOCK_SIZE, MemoryPlan
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.web.encoding import takes_gzip
from octavo.entrypoints.web.feed import Feed

if TYPE_CHECKING:
    from octavo.entrypoints.openai.endpoint import Call

_MIN_GZIP_BYTES = 1024


class EngineStateQuery(msgspec.Struct, kw_only=True):
    """Attributes:
    model: a served name; absent is the first one.
    after_step: the last step that is known already; -1: none.
    block: id of a block to tell more about.
    """

    model: str | None = None
    after_step: Annotated[int, Meta(ge=-1, le=2**53)] = -1
    block: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


class EngineState(msgspec.Struct, kw_only=True):
    """An engine as it is now.

    Attributes:
        model: the name that was asked for.
        block_size: tokens per KV block.
        memory: the plan that was made at the start, in bytes.
    """

    model: str
    block_size: int
    kv_cache_dtype: str
    scheduling_policy: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    memory: MemoryPlan
    view: EngineView


async def engine_state(call: Call) -> Response:
    """The picture, gzipped where the client takes that: maps of blocks shrink well."""
    query = call.query(EngineStateQuery)
    server = call.server
    model = server.model(query.model)
    engine = model.engine
    feed = server.feeds.setdefault(id(engine), Feed(engine))
    state = EngineState(
        model=model.name,
        block_size=BLOCK_SIZE,
        kv_cache_dtype=engine.info.kv_cache_dtype,
        scheduling_policy=engine.config.scheduler.scheduling_policy,
        max_num_seqs=engine.config.scheduler.max_num_seqs,
        max_num_batched_tokens=engine.config.scheduler.max_step_tokens,
        max_model_len=model.max_model_len,
        memory=engine.info.memory_plan,
        view=await feed.view(query.after_step, query.block),
    )
    body = msgspec.json.encode(state)
    headers = {"content-type": "application/json", "cache-control": "no-store"}
    if len(body) >= _MIN_GZIP_BYTES and takes_gzip(call.header("accept-encoding")):
        body = gzip.compress(body, 1)
        headers["content-encoding"] = "gzip"
    return Response(body, headers=headers)


ROUTES = (
    APIRoute(
        method="GET",
        path="/v1/engine/state",
        summary="What the engine is doing: steps, KV blocks, requests",
        handler=engine_state,
        query=EngineStateQuery,
        response=EngineState,
        errors=(404,),
    ),
)
