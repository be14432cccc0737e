"""POST /v1/chat/completions/render and /v1/completions/render: what an engine has to do for a
request, as /inference/v1/generate takes it, so that whoever reads requests and writes answers need
not be who has the model. Nothing is admitted, charged or generated. (/v1/messages/render and
/v1/responses/render are with their APIs.)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.contracts.sampling_params import SamplingParams
from octavo.engine.beam_search import CheckedBeamSearch
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.beams import beam_search_fields
from octavo.entrypoints.openai.chat import prepare_chat_completion
from octavo.entrypoints.openai.completions import prepare_completion
from octavo.entrypoints.openai.errors import bad_request, json_response
from octavo.entrypoints.openai.gate import REQUEST_ID_RULE, is_request_id
from octavo.entrypoints.openai.generate import GenerateRequest
from octavo.entrypoints.openai.parsing import parse_body
from octavo.entrypoints.openai.protocol import (
    CHAT_UNSUPPORTED,
    COMPLETION_UNSUPPORTED,
    ChatCompletionRequest,
    CompletionRequest,
)
from octavo.entrypoints.openai.sampling import sampling_fields

if TYPE_CHECKING:
    from starlette.responses import Response

    from octavo.engine.input_processor import CheckedRequest
    from octavo.entrypoints.openai.endpoint import Call
    from octavo.entrypoints.openai.prepared import PreparedRequest
    from octavo.entrypoints.openai.protocol import GenerationRequest


async def render_chat_completion(call: Call) -> Response:
    """What a chat request asks of the engine."""
    request = parse_body(call.take_body(), ChatCompletionRequest, CHAT_UNSUPPORTED)
    return json_response(await rendered_chat(request, await prepare_chat_completion(call, request)))


async def rendered_chat(
    request: ChatCompletionRequest, prepared: PreparedRequest, *, stop_field: str = "stop"
) -> GenerateRequest:
    """What a chat asks of the engine, in whatever API it was asked for.

    Args:
        stop_field: how that API calls `stop`.

    Raises:
        APIError: it cannot be said.
        RequestError: its grammar cannot be used.
    """
    for name, field in (("stop", stop_field), ("stop_regex", "stop_regex")):
        if prepared.parsing is not None and getattr(request, name):
            raise bad_request(
                f"{field} cannot be rendered where reasoning or tool calls are looked for: it ends "
                "content alone, which /inference/v1/generate does not know; leave it out",
                field,
            )
    (rendered,) = await _rendered(request, prepared)
    return rendered


async def render_completion(call: Call) -> Response:
    """What a completion request asks of the engine, prompt by prompt."""
    request = parse_body(call.take_body(), CompletionRequest, COMPLETION_UNSUPPORTED)
    if request.max_tokens == 0:
        raise bad_request(
            "max_tokens=0 cannot be rendered: /inference/v1/generate makes a token at least; "
            "ask for 1, and leave it out of the answer",
            "max_tokens",
        )
    if request.stream and request.echo and request.logprobs is not None:
        raise bad_request(
            "echo with logprobs cannot be rendered with stream: /inference/v1/generate does not "
            "stream the prompt's; use stream=false",
            "echo",
        )
    return json_response(await _rendered(request, await prepare_completion(call, request)))


async def _rendered(request: GenerationRequest, prepared: PreparedRequest) -> list[GenerateRequest]:
    """One request per prompt. Raises as `rendered_chat`."""
    if request.resumable:
        raise bad_request(
            "resumable cannot be rendered: streams of /inference/v1/generate are not; leave it out",
            "resumable",
        )
    num_prompts = len(prepared.requests)
    ids = [prepared.request_id]
    if num_prompts > 1:
        ids = [f"{prepared.request_id}-{i}" for i in range(num_prompts)]
    if not is_request_id(ids[-1]):
        raise bad_request(
            f"request_id and the prompt's number, {ids[-1]}, must be {REQUEST_ID_RULE}",
            "request_id",
        )
    await prepared.check_grammar()
    return [
        GenerateRequest(
            request_id=request_id,
            model=prepared.model.name,
            token_ids=to_be_run.prompt_token_ids,
            sampling_params=_fields(to_be_run, prepared),
            stream=request.stream or None,
            stream_options=request.stream_options,
            cache_salt=prepared.cache_salt,
            priority=prepared.priority or None,
        )
        for request_id, to_be_run in zip(ids, prepared.requests)
    ]


def _fields(
    request: CheckedRequest | CheckedBeamSearch, prepared: PreparedRequest
) -> dict[str, Any]:
    """`sampling_params` of a prompt's request, with the defaults written out."""
    if isinstance(request, CheckedBeamSearch):
        fields = beam_search_fields(request.params, logprobs=prepared.params.logprobs)
        return {**fields, "max_tokens": request.max_tokens}
    assert isinstance(request.params, SamplingParams)
    return sampling_fields(request.params)


ROUTES = (
    APIRoute(
        method="POST",
        path="/v1/chat/completions/render",
        summary="What a chat request asks of /inference/v1/generate",
        handler=render_chat_completion,
        request=ChatCompletionRequest,
        unsupported=CHAT_UNSUPPORTED,
        response=GenerateRequest,
        queued=True,
    ),
    APIRoute(
        method="POST",
        path="/v1/completions/render",
        summary="The same of a completion request, a list with one for each prompt",
        handler=render_completion,
        request=CompletionRequest,
        unsupported=COMPLETION_UNSUPPORTED,
        response=list[GenerateRequest],
        queued=True,
    ),
)
