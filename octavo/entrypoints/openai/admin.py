"""Routes that act on the whole server, with --server-dev-mode: pause and resume, abort by id, reset
of the prefix cache, the configuration."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from octavo.contracts.pause_mode import PauseMode
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.errors import json_response
from octavo.entrypoints.openai.parsing import parse_body
from octavo.entrypoints.openai.siblings import ask_all
from octavo.version import __version__

if TYPE_CHECKING:
    from starlette.responses import Response

    from octavo.entrypoints.openai.endpoint import Call

_MAX_IDS = 1024
_PREFIX = re.compile(r"\A[a-z]+[-_]")  # of the ids of answers, as cmpl- and msg_


class PauseQuery(msgspec.Struct, kw_only=True):
    """Attributes:
    mode: what becomes of requests that have begun: "abort"; "wait" lets them end, and answers when
        they have; "keep" leaves them as they are until /resume.
    clear_cache: forget cached prefixes; not with "keep".
    """

    mode: PauseMode = "abort"
    clear_cache: bool = True


class PauseState(msgspec.Struct):
    """Answer to POST /pause and POST /resume: "paused" or "resumed"."""

    status: str


class IsPaused(msgspec.Struct):
    """Answer to GET /is_paused."""

    is_paused: bool


class AbortRequest(msgspec.Struct, kw_only=True):
    """POST /abort_requests: ids of responses, or the x-request-id that they came with."""

    request_ids: Annotated[list[str], Meta(max_length=_MAX_IDS)]


class Aborted(msgspec.Struct):
    """Answer to POST /abort_requests: how many there were to abort, a prompt each."""

    num_aborted: int


class CacheReset(msgspec.Struct):
    """Answer to POST /reset_prefix_cache: whether it was; not while requests hold blocks."""

    reset: bool


class ServerInfo(msgspec.Struct, kw_only=True):
    """Answer to GET /server_info: name of each engine → its configuration, by section."""

    version: str
    engines: dict[str, Any]


async def pause(call: Call) -> Response:
    """Let requests wait from now on."""
    query = call.query(PauseQuery)
    for engine in call.server.engines.values():
        await engine.pause_generation(mode=query.mode, clear_cache=query.clear_cache)
    return json_response(PauseState("paused"))


async def resume(call: Call) -> Response:
    """Go on."""
    for engine in call.server.engines.values():
        await engine.resume_generation()
    return json_response(PauseState("resumed"))


async def is_paused(call: Call) -> Response:
    """Whether any engine is."""
    paused = [await engine.is_paused() for engine in call.server.engines.values()]
    return json_response(IsPaused(any(paused)))


async def abort_requests(call: Call) -> Response:
    """End requests by their public ids; unknown ones are passed over, as they may have ended."""
    body = call.take_body()
    wanted = set(parse_body(body, AbortRequest, {}).request_ids)
    num_aborted = 0
    for engine in call.server.engines.values():
        for engine_id in engine.unfinished_request_ids:
            if not wanted.isdisjoint(_names_of(engine_id)):
                await engine.abort(engine_id)
                num_aborted += 1
    for answer in await ask_all(call, body):
        num_aborted += msgspec.json.decode(answer, type=Aborted).num_aborted
    return json_response(Aborted(num_aborted))


def _names_of(engine_id: str) -> tuple[str, str]:
    """The response's id in a `Server.internal_id`, and that without its prefix."""
    public_id = engine_id.rpartition("-")[0]
    return public_id, _PREFIX.sub("", public_id)


async def reset_prefix_cache(call: Call) -> Response:
    """Forget all cached prefixes."""
    done = [await engine.reset_prefix_cache() for engine in call.server.engines.values()]
    return json_response(CacheReset(all(done)))


async def server_info(call: Call) -> Response:
    """The engines' configuration; the server's own has keys in it."""
    engines = {name: engine.config for name, engine in call.server.engines.items()}
    return json_response(ServerInfo(version=__version__, engines=engines))


ROUTES = (
    APIRoute(
        method="POST",
        path="/pause",
        summary="Let requests wait until /resume",
        handler=pause,
        query=PauseQuery,
        response=PauseState,
    ),
    APIRoute(
        method="POST",
        path="/resume",
        summary="Go on after /pause",
        handler=resume,
        response=PauseState,
    ),
    APIRoute(
        method="GET",
        path="/is_paused",
        summary="Whether the engine is paused",
        handler=is_paused,
        response=IsPaused,
    ),
    *(
        APIRoute(
            method="POST",
            path=path,
            summary="End requests by id",
            handler=abort_requests,
            request=AbortRequest,
            response=Aborted,
        )
        for path in ("/abort_requests", "/abort")
    ),
    APIRoute(
        method="POST",
        path="/reset_prefix_cache",
        summary="Forget all cached prefixes",
        handler=reset_prefix_cache,
        response=CacheReset,
    ),
    APIRoute(
        method="GET",
        path="/server_info",
        summary="The engines' configuration",
        handler=server_info,
        response=ServerInfo,
    ),
)
