"""The routes of /v1/responses: create, retrieve, delete, cancel, list the input's items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from octavo.contracts.messages import ServiceClass
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.chat import prepare_chat
from octavo.entrypoints.openai.chat_prompt import render_chat
from octavo.entrypoints.openai.errors import (
    APIError,
    as_api_error,
    bad_request,
    json_response,
    renamed_params,
)
from octavo.entrypoints.openai.event_log import EventLog
from octavo.entrypoints.openai.generate import GenerateRequest
from octavo.entrypoints.openai.generation import (
    UsageCounter,
    begin,
    usage_of,
)
from octavo.entrypoints.openai.logprobs import chat_logprobs
from octavo.entrypoints.openai.parsing import parse_body
from octavo.entrypoints.openai.prepared import check_num_logprobs
from octavo.entrypoints.openai.render import rendered_chat
from octavo.entrypoints.openai.request_log import end_in_background
from octavo.entrypoints.openai.sse import EventStream
from octavo.entrypoints.responses.builder import ResponseBuilder
from octavo.entrypoints.responses.conversion import chat_request, input_items, wants_logprobs
from octavo.entrypoints.responses.protocol import (
    ENCRYPTED_REASONING,
    UNSUPPORTED,
    DeletedResponse,
    InputItemsQuery,
    InputTokens,
    InputTokensRequest,
    ItemList,
    Response,
    ResponseEvent,
    ResponsesRequest,
    RetrieveQuery,
)
from octavo.entrypoints.responses.store import MAX_LOG_BYTES, StoredResponse
from octavo.log import get_logger

if TYPE_CHECKING:
    from starlette.responses import Response as HTTPResponse

    from octavo.contracts.messages import CompletionOutput
    from octavo.entrypoints.openai.answers import TokenLogprob
    from octavo.entrypoints.openai.endpoint import Call
    from octavo.entrypoints.openai.generation import Generation
    from octavo.entrypoints.openai.prepared import PreparedRequest
    from octavo.entrypoints.openai.protocol import ChatCompletionRequest

logger = get_logger(__name__)

PATH = "/v1/responses"


async def create_response(call: Call) -> HTTPResponse | EventStream:
    """Make one response: JSON, or a stream of events; or in the background."""
    request = parse_body(call.take_body(), ResponsesRequest, UNSUPPORTED)
    if request.background and request.store is False:
        raise bad_request("background=true needs store=true: leave store out", "store")
    if call.service_class is ServiceClass.BATCH:
        if request.background:
            raise bad_request("a batch is in the background already; leave it out", "background")
        request.store = False  # the batch's results keep it: it would displace others
    earlier, own = _earlier_items(call, request), input_items(request.input)
    with ExitStack() as stack:
        if request.background:  # the work outlives this HTTP request, and so does its ticket
            call = replace(call, ticket=stack.enter_context(call.ticket.hand_over()))
            if call.record.key is not None:
                stack.enter_context(call.record.key.account.in_background())
        making = await _begin(call, request, [*earlier, *own])
        entry = StoredResponse(
            key=call.scope["octavo.key"],
            response=making.builder.response,
            input_items=msgspec.json.encode(
                [{**item, "id": item.get("id") or f"item_{uuid4().hex}"} for item in own]
            ),
            earlier_items=msgspec.json.encode(earlier),
        )
        if request.background:
            return _in_background(call, making, entry, stack.pop_all(), stream=request.stream)
    if request.stream:
        return EventStream(_stored(call, making, entry), done=b"")
    await making.whole()
    _keep(call, entry)
    return json_response(entry.response)


class _Making:
    """One response on its way."""

    def __init__(
        self, generation: Generation, builder: ResponseBuilder, num_top: int | None
    ) -> None:
        self.builder = builder
        self._generation = generation
        self._num_top = num_top

    async def whole(self) -> None:
        """Make it at once. Raises APIError, OctavoError: it failed."""
        outputs = await self._generation.final()
        (completion,) = outputs[0].outputs
        self.builder.begin()
        self.builder.take(self._generation.events(completion), self._logprobs(completion))
        self.builder.end(completion.finish_reason, usage_of(outputs))

    async def events(self) -> AsyncGenerator[list[bytes], None]:
        """Make it, and give its events as they come; the last one says how it ended."""
        builder = self.builder
        yield builder.begin()
        counter = UsageCounter(self._generation.prompts)
        try:
            async with aclosing(self._generation.stream()) as outputs:
                async for i, output in outputs:
                    counter.add(i, output)
                    for completion in output.outputs:
                        self._generation.check_finish(completion)
                        said = self._generation.events(completion)
                        told = builder.take(said, self._logprobs(completion))
                        if completion.finished:
                            told += builder.end(completion.finish_reason, counter.usage)
                        if told:
                            yield told
        except Exception as error:
            failure = as_api_error(error)
            if failure.code == "internal_error":
                logger.error("a response failed", exc_info=error)
            self._generation.record.fail(failure)
            yield builder.fail(failure)

    def _logprobs(self, completion: CompletionOutput) -> list[TokenLogprob]:
        if self._num_top is None or completion.logprobs is None:
            return []
        table = self._generation.model.tokens
        ids, values = completion.token_ids, completion.logprobs
        return chat_logprobs(ids, values, table, num_top=self._num_top, as_ids=False).content


async def _prepare(
    call: Call, request: ResponsesRequest, chat: ChatCompletionRequest
) -> PreparedRequest:
    """Check a request, of which `chat` is the same as a chat. Raises as `prepare_chat`."""
    num_top = None
    if wants_logprobs(request):
        num_top = request.top_logprobs or 0
        check_num_logprobs("top_logprobs", num_top, call.server.config.max_logprobs)
    most = request.max_output_tokens
    if most is not None and most < 1:
        raise bad_request(f"max_output_tokens={most} must be at least 1", "max_output_tokens")
    return await prepare_chat(
        call,
        chat,
        call.server.model(request.model),
        max_tokens=most,
        logprobs=num_top,
        max_tokens_field="max_output_tokens",
        prompt_field="input",
        format_field="text",
    )


async def render_response(call: Call) -> HTTPResponse:
    """What a request for a response asks of the engine."""
    request = parse_body(call.take_body(), ResponsesRequest, UNSUPPORTED)
    if request.background:
        raise bad_request(
            "background cannot be rendered: /inference/v1/generate answers its client; leave it "
            "out",
            "background",
        )
    chat = chat_request(request, [*_earlier_items(call, request), *input_items(request.input)])
    return json_response(await rendered_chat(chat, await _prepare(call, request, chat)))


async def _begin(call: Call, request: ResponsesRequest, items: list[dict[str, Any]]) -> _Making:
    model = call.server.model(request.model)
    call.record.model = model.name
    prepared = await _prepare(call, request, chat_request(request, items))
    generation = begin(call, prepared, "resp_")
    # Whoever knows the id of an HTTP request must not know that of the response.
    response = Response(
        id=f"resp_{uuid4().hex}",
        created_at=generation.created,
        status="queued" if request.background else "in_progress",
        background=bool(request.background),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata or {},
        model=model.name,
        output=[],
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        reasoning={"effort": None, "summary": None, **(request.reasoning or {})},
        store=request.store is not False,
        temperature=generation.params.temperature,
        text={"format": {"type": "text"}, **(request.text or {})},
        tool_choice=request.tool_choice or "auto",
        tools=request.tools or [],
        top_logprobs=request.top_logprobs or 0,
        top_p=generation.params.top_p,
        user=request.user,
    )
    builder = ResponseBuilder(
        response,
        generation.parsing,
        carries_reasoning=ENCRYPTED_REASONING in (request.include or ()),
    )
    return _Making(generation, builder, prepared.params.logprobs)


def _earlier_items(call: Call, request: InputTokensRequest) -> list[dict[str, Any]]:
    """The conversation before a request's own items. Raises APIError."""
    response_id = request.previous_response_id
    if response_id is None:
        return []
    try:
        entry = _entry(call, response_id)
    except APIError as error:
        error.param = "previous_response_id"
        raise
    if entry.response.status in ("queued", "in_progress"):
        raise APIError(
            409,
            f"the response {response_id} is still being made; wait for its end",
            param="previous_response_id",
            code="response_in_progress",
        )
    return entry.conversation()


def _entry(call: Call, response_id: str) -> StoredResponse:
    return call.server.responses.get(response_id, call.scope["octavo.key"])


def _keep(call: Call, entry: StoredResponse) -> None:
    if entry.response.store:
        call.server.responses.put(entry)


async def _stored(
    call: Call, making: _Making, entry: StoredResponse
) -> AsyncGenerator[bytes, None]:
    async with aclosing(making.events()) as batches:
        async for events in batches:
            if entry.response.status not in ("queued", "in_progress"):
                _keep(call, entry)  # before its last event is out
            yield b"".join(events)


def _in_background(
    call: Call, making: _Making, entry: StoredResponse, ticket: ExitStack, *, stream: bool | None
) -> HTTPResponse | EventStream:
    log = entry.log = EventLog(MAX_LOG_BYTES)
    queued = json_response(entry.response)
    call.record.in_background = True

    async def work() -> None:
        call.server.in_flight += 1
        try:
            async with aclosing(making.events()) as batches:
                async for events in batches:
                    for event in events:
                        log.append(event)
        except asyncio.CancelledError:
            for event in making.builder.cancel():
                log.append(event)
        finally:
            log.close()
            ticket.close()
            call.server.in_flight -= 1
            entry.task = None
            if entry in call.server.responses:
                _keep(call, entry)
            end_in_background(call.server, call.record)

    entry.task = asyncio.ensure_future(work())
    _keep(call, entry)
    return EventStream(log.read(0), done=b"") if stream else queued


async def retrieve_response(call: Call) -> HTTPResponse | EventStream:
    """A response as of now, or its events again."""
    query = call.query(RetrieveQuery)
    entry = _entry(call, call.path_params["response_id"])
    if not query.stream:
        if query.starting_after != -1:
            raise bad_request("starting_after needs stream=true", "starting_after")
        return json_response(entry.response)
    if entry.log is None:
        raise bad_request("only responses that were made in the background are streamed", "stream")
    if query.starting_after < -1:
        raise bad_request("starting_after must be a sequence number", "starting_after")
    return EventStream(entry.log.read(query.starting_after + 1), done=b"")


async def cancel_response(call: Call) -> HTTPResponse:
    """End a background response; what it has so far is kept."""
    entry = _entry(call, call.path_params["response_id"])
    if not entry.response.background:
        raise bad_request("only a response that is made in the background can be cancelled")
    await entry.stop()
    return json_response(entry.response)


async def delete_response(call: Call) -> HTTPResponse:
    """Forget a response."""
    entry = _entry(call, call.path_params["response_id"])
    call.server.responses.drop(entry.response.id)
    await entry.stop()
    return json_response(DeletedResponse(id=entry.response.id))


async def count_input_tokens(call: Call) -> HTTPResponse:
    """How many tokens the prompt of a response would have."""
    request = parse_body(call.take_body(), InputTokensRequest, UNSUPPORTED)
    items = [*_earlier_items(call, request), *input_items(request.input)]
    chat = chat_request(request, items)
    with renamed_params({"messages": "input"}):
        ids = await render_chat(chat, call.server.model(request.model))
    return json_response(InputTokens(input_tokens=len(ids)))


async def list_input_items(call: Call) -> HTTPResponse:
    """The items of a response's own input."""
    query = call.query(InputItemsQuery)
    entry = _entry(call, call.path_params["response_id"])
    items: list[dict[str, Any]] = msgspec.json.decode(entry.input_items)
    if query.order == "desc":
        items.reverse()
    if query.after is not None:
        ids = [item["id"] for item in items]
        if query.after not in ids:
            raise bad_request("after must be the id of one of the items", "after")
        items = items[ids.index(query.after) + 1 :]
    page = items[: query.limit]
    return json_response(
        ItemList(
            data=page,
            first_id=page[0]["id"] if page else None,
            last_id=page[-1]["id"] if page else None,
            has_more=len(items) > len(page),
        )
    )


_ONE = f"{PATH}/{{response_id}}"

ROUTES = (
    APIRoute(
        method="POST",
        path=PATH,
        summary="Make a response",
        handler=create_response,
        request=ResponsesRequest,
        unsupported=UNSUPPORTED,
        response=Response,
        event=ResponseEvent,
        errors=(404, 409),
        queued=True,
    ),
    APIRoute(
        method="POST",
        path=f"{PATH}/render",
        summary="What a request for a response asks of /inference/v1/generate",
        handler=render_response,
        request=ResponsesRequest,
        unsupported=UNSUPPORTED,
        response=GenerateRequest,
        errors=(404, 409),
        queued=True,
    ),
    APIRoute(
        method="POST",
        path=f"{PATH}/input_tokens",
        summary="The number of a response's prompt tokens",
        handler=count_input_tokens,
        request=InputTokensRequest,
        unsupported=UNSUPPORTED,
        response=InputTokens,
        errors=(404, 409),
        queued=True,
    ),
    APIRoute(
        method="GET",
        path=_ONE,
        summary="A response that is kept, or its events again",
        handler=retrieve_response,
        query=RetrieveQuery,
        response=Response,
        event=ResponseEvent,
        errors=(404, 410),
    ),
    APIRoute(
        method="DELETE",
        path=_ONE,
        summary="Forget a response",
        handler=delete_response,
        response=DeletedResponse,
        errors=(404,),
    ),
    APIRoute(
        method="POST",
        path=f"{_ONE}/cancel",
        summary="End a background response",
        handler=cancel_response,
        response=Response,
        errors=(400, 404),
    ),
    APIRoute(
        method="GET",
        path=f"{_ONE}/input_items",
        summary="The items of a response's input",
        handler=list_input_items,
        query=InputItemsQuery,
        response=ItemList,
        errors=(404,),
    ),
)
