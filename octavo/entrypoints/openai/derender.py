"""POST /v1/chat/completions/derender and /v1/completions/derender: the answer to a request that was
rendered (`render`), from what /inference/v1/generate made of that. Nothing is generated. The
request is checked and its prompts are read again, so that nothing is kept in between."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from octavo.contracts.messages import CompletionOutput, Logprob, RequestOutput
from octavo.engine.beam_search import CheckedBeamSearch
from octavo.engine.detokenizer import Piece, make_detokenizer
from octavo.entrypoints.openai.answers import (
    ChatCompletion,
    Completion,
    PromptLogprobs,
    TokenLogprob,
)
from octavo.entrypoints.openai.api_route import APIRoute
from octavo.entrypoints.openai.chat import chat_of, prepare_chat_completion
from octavo.entrypoints.openai.completions import completion_of, prepare_completion
from octavo.entrypoints.openai.errors import bad_request
from octavo.entrypoints.openai.generate import GenerateAnswer, GenerateChoice
from octavo.entrypoints.openai.generation import Generation, skips_special_tokens
from octavo.entrypoints.openai.logprobs import token_id_of
from octavo.entrypoints.openai.parsing import parse_body, parse_values
from octavo.entrypoints.openai.protocol import (
    CHAT_UNSUPPORTED,
    COMPLETION_UNSUPPORTED,
    ChatCompletionRequest,
    CompletionRequest,
)
from octavo.entrypoints.openai.state import MAX_CHOICES
from octavo.errors import shown

if TYPE_CHECKING:
    from starlette.responses import Response

    from octavo.engine.parsers.parser import OutputParser
    from octavo.entrypoints.openai.endpoint import Call
    from octavo.entrypoints.openai.prepared import PreparedRequest

R = TypeVar("R", ChatCompletionRequest, CompletionRequest)

MAX_TOKENS = 1 << 18
"""Of all answers of a request: to make their text holds the interpreter for microseconds each."""

_ID = re.compile("[0-9]{1,9}")
_ENDS = (None, "stop", "length", "repetition", "timeout")


class DerenderChatRequest(msgspec.Struct, kw_only=True):
    """POST /v1/chat/completions/derender.

    Attributes:
        chat_request: the request that was rendered.
        generate_response: what /inference/v1/generate answered, whole.
        prompt_tokens: how many the prompt has, as whoever rendered it knows; checked.
        model: a served name; absent is that of `chat_request`.
    """

    chat_request: dict[str, Any]
    generate_response: GenerateAnswer
    prompt_tokens: int | None = None
    model: str | None = None


class DerenderCompletionRequest(msgspec.Struct, kw_only=True):
    """POST /v1/completions/derender.

    Attributes:
        completion_request: the request that was rendered.
        generate_responses: what /inference/v1/generate answered, one for each prompt.
        prompt_tokens: how many each prompt has, as whoever rendered it knows; checked.
        model: a served name; absent is that of `completion_request`.
    """

    completion_request: dict[str, Any]
    generate_responses: Annotated[list[GenerateAnswer], Meta(max_length=MAX_CHOICES)]
    prompt_tokens: Annotated[list[int], Meta(max_length=MAX_CHOICES)] | None = None
    model: str | None = None


UNSUPPORTED: dict[str, tuple[Any, ...]] = {"stream": (False,)}


class _Made(Generation):
    """A generation that was made elsewhere."""

    def __init__(
        self, call: Call, prepared: PreparedRequest, public_id: str, outputs: list[RequestOutput]
    ) -> None:
        super().__init__(call, prepared, public_id, [])
        self._outputs = outputs

    async def final(self) -> list[RequestOutput]:
        """The outputs that it was given."""
        return self._outputs


async def derender_chat_completion(call: Call) -> Response:
    """The answer to a chat."""
    body = parse_body(call.take_body(), DerenderChatRequest, UNSUPPORTED)
    request = _rendered_request(body.chat_request, ChatCompletionRequest, CHAT_UNSUPPORTED)
    request = msgspec.structs.replace(request, model=body.model or request.model)
    prepared = await prepare_chat_completion(call, request)
    given = body.generate_response
    num_tokens = None if body.prompt_tokens is None else [body.prompt_tokens]
    outputs = await _outputs(prepared, [given], num_tokens, "generate_response")
    chat = await chat_of(request, _Made(call, prepared, given.request_id, outputs))
    return await chat.answer()


async def derender_completion(call: Call) -> Response:
    """The answer to a completion request."""
    body = parse_body(call.take_body(), DerenderCompletionRequest, UNSUPPORTED)
    request = _rendered_request(body.completion_request, CompletionRequest, COMPLETION_UNSUPPORTED)
    request = msgspec.structs.replace(request, model=body.model or request.model)
    prepared = await prepare_completion(call, request)
    answers = body.generate_responses
    outputs = await _outputs(prepared, answers, body.prompt_tokens, "generate_responses")
    made = _Made(call, prepared, answers[0].request_id, outputs)
    completion = await completion_of(request, made)
    return await completion.answer()


def _rendered_request(
    values: dict[str, Any], kind: type[R], unsupported: Mapping[str, tuple[Any, ...]]
) -> R:
    """The request that was rendered, as one for a whole answer. Raises APIError."""
    values = {name: value for name, value in values.items() if value is not None}
    request: R = parse_values(values, kind, unsupported)
    return msgspec.structs.replace(request, stream=None, stream_options=None, resumable=None)


async def _outputs(
    prepared: PreparedRequest,
    answers: Sequence[GenerateAnswer],
    num_prompt_tokens: Sequence[int] | None,
    field: str,
) -> list[RequestOutput]:
    """What an engine would have given for a request.

    Args:
        field: the body's field that has the answers.

    Raises:
        APIError: they are none to this request.
    """
    if len(answers) != len(prepared.requests):
        raise bad_request(
            f"{field} has {len(answers)} answers to a request of {len(prepared.requests)} prompts; "
            "give one for each",
            field,
        )
    lengths = [len(prompt) for prompt in prepared.prompts]
    if num_prompt_tokens is not None and list(num_prompt_tokens) != lengths:
        raise bad_request(
            f"prompt_tokens={shown(num_prompt_tokens)} is not what the request has, "
            f"{shown(lengths)}: give the request as it was rendered",
            "prompt_tokens",
        )
    num_tokens = sum(len(choice.token_ids) for answer in answers for choice in answer.choices)
    if num_tokens > MAX_TOKENS:
        raise bad_request(
            f"{field} has {num_tokens} tokens; at most {MAX_TOKENS}: derender fewer prompts or "
            "choices at once",
            field,
        )

    def made() -> list[RequestOutput]:
        return [_output(prepared, i, answer, field) for i, answer in enumerate(answers)]

    return await asyncio.to_thread(made)


def _check(prepared: PreparedRequest, answer: GenerateAnswer, field: str) -> None:
    num_choices, most = len(answer.choices), prepared.params.n  # beams may be fewer
    indices = sorted(choice.index for choice in answer.choices)
    if not 0 < num_choices <= most or indices != list(range(num_choices)):
        raise bad_request(
            f"{field} has choices of the indices {shown(indices)}; the request has {most}, "
            "numbered from 0",
            field,
        )
    vocab_size = prepared.model.engine.info.vocab_size
    for choice in answer.choices:
        ids = choice.token_ids
        if len(ids) > prepared.model.max_model_len:
            raise bad_request(
                f"{field} has a choice of {len(ids)} tokens, more than max_model_len="
                f"{prepared.model.max_model_len}",
                field,
            )
        wrong = next((i for i in ids if not 0 <= i < vocab_size), None)
        if wrong is not None:
            raise bad_request(
                f"{field} holds {shown(wrong)}; the model's ids are 0…{vocab_size - 1}", field
            )
        if choice.finish_reason not in _ENDS:
            raise bad_request(
                f"{field} has finish_reason={shown(choice.finish_reason)}; an answer that can be "
                "shown ends with stop, length, repetition or timeout",
                field,
            )
        if prepared.params.logprobs is not None:
            named = [] if choice.logprobs is None else choice.logprobs.content
            if [token_id_of(entry.token) for entry in named] != ids:
                raise bad_request(
                    f"{field} has logprobs of other tokens than its token_ids, or none", field
                )


def _output(prepared: PreparedRequest, i: int, answer: GenerateAnswer, field: str) -> RequestOutput:
    _check(prepared, answer, field)
    cached = 0
    if answer.usage is not UNSET and answer.usage is not None:
        cached = answer.usage.prompt_tokens_details.cached_tokens
    prompt = prepared.requests[i].prompt_token_ids
    return RequestOutput(
        request_id=answer.request_id,
        prompt=None,
        prompt_token_ids=prompt,
        outputs=[_completion(prepared, i, choice) for choice in answer.choices],
        finished=True,
        num_cached_tokens=cached,
        prompt_logprobs=_prompt_logprobs(answer.prompt_logprobs, prompt, field),
    )


def _completion(prepared: PreparedRequest, i: int, choice: GenerateChoice) -> CompletionOutput:
    tokenizer, request = prepared.model.engine.tokenizer, prepared.requests[i]
    parser = None
    if prepared.parsing is not None:
        parser = prepared.parsing.parser_for(request.prompt_token_ids, tokenizer)()
    ends_by_token = choice.finish_reason == "stop" and not isinstance(choice.stop_reason, str)
    if isinstance(request, CheckedBeamSearch):
        piece = _of_beam(prepared, request, choice.token_ids, parser, ends_by_token=ends_by_token)
    else:
        piece = make_detokenizer(tokenizer, prepared.params, parser, is_shown_at_end=True).push(
            choice.token_ids, stop_token=ends_by_token, finished=True
        )
    num_top = prepared.params.logprobs
    logprobs = None
    if num_top is not None and choice.logprobs is not None:
        logprobs = [_position(entry, num_top) for entry in choice.logprobs.content]
    return CompletionOutput(
        index=choice.index,
        text=piece.text,
        token_ids=choice.token_ids[: piece.num_tokens],
        logprobs=logprobs,
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        events=None if parser is None else list(piece.events),
    )


def _of_beam(
    prepared: PreparedRequest,
    request: CheckedBeamSearch,
    token_ids: list[int],
    parser: OutputParser | None,
    *,
    ends_by_token: bool,
) -> Piece:
    """A beam's text, which is decoded in one."""
    ids = token_ids
    if ends_by_token and not request.params.include_stop_str_in_output:
        ids = token_ids[:-1]
    skips = skips_special_tokens(prepared.params)
    text = prepared.model.engine.tokenizer.decode(ids, skip_special_tokens=skips)
    events = () if parser is None else (*parser.feed(text), *parser.finish())
    return Piece(text, len(token_ids), events=events)


def _position(entry: TokenLogprob, num_top: int) -> dict[int, Logprob]:
    """Log probabilities at a token: its own first; of the others those behind the `num_top` first
    ones (-1: all have a rank) were listed, which have no rank."""
    own = token_id_of(entry.token)
    position = {own: Logprob(entry.logprob, num_top + 1)}
    for rank, top in enumerate(entry.top_logprobs, start=1):
        is_ranked = num_top < 0 or rank <= num_top
        position[token_id_of(top.token)] = Logprob(top.logprob, rank if is_ranked else None)
    return position


def _prompt_logprobs(
    given: PromptLogprobs | UnsetType, prompt: list[int], field: str
) -> list[dict[int, Logprob] | None] | None:
    """Log probabilities at every token of the prompt but the first, its own first."""
    if given is UNSET:
        return None
    wrong = bad_request(f"{field} has prompt_logprobs of other tokens than the prompt's", field)
    if len(given) != len(prompt) or given[0] is not None:
        raise wrong
    positions: list[dict[int, Logprob] | None] = [None]
    for token_id, position in zip(prompt[1:], given[1:]):
        own = str(token_id)
        if position is None or own not in position or not all(map(_ID.fullmatch, position)):
            raise wrong
        ordered = {own: position[own], **position}
        positions.append(
            {int(i): Logprob(p.logprob, p.rank, p.decoded_token) for i, p in ordered.items()}
        )
    return positions


ROUTES = (
    APIRoute(
        method="POST",
        path="/v1/chat/completions/derender",
        summary="The answer to a chat that was rendered and generated",
        handler=derender_chat_completion,
        request=DerenderChatRequest,
        unsupported=UNSUPPORTED,
        response=ChatCompletion,
        queued=True,
    ),
    APIRoute(
        method="POST",
        path="/v1/completions/derender",
        summary="The same of a completion request",
        handler=derender_completion,
        request=DerenderCompletionRequest,
        unsupported=UNSUPPORTED,
        response=Completion,
        queued=True,
    ),
)
