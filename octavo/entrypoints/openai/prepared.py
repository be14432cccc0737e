"""What an HTTP request asks of its engine: read and checked, and nothing of it begun."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from octavo.contracts.structured_outputs import GRAMMAR_PARAM
from octavo.engine.input_processor import CheckedRequest
from octavo.entrypoints.openai.beams import beam_search_params
from octavo.entrypoints.openai.errors import bad_request
from octavo.entrypoints.openai.gate import REQUEST_ID_RULE, is_request_id
from octavo.entrypoints.openai.sampling import sampling_params
from octavo.entrypoints.openai.state import MAX_CHOICES
from octavo.entrypoints.openai.structured import grammar_field
from octavo.entrypoints.openai.truncation import kept_tokens
from octavo.errors import RequestError

if TYPE_CHECKING:
    from octavo.contracts.beam_search_params import BeamSearchParams
    from octavo.contracts.sampling_params import SamplingParams
    from octavo.engine.beam_search import CheckedBeamSearch
    from octavo.entrypoints.openai.chat_output import AnswerParsing
    from octavo.entrypoints.openai.endpoint import Call
    from octavo.entrypoints.openai.protocol import GenerationRequest
    from octavo.entrypoints.openai.state import ServedModel


_FIELDS: dict[str | None, str] = {"extra_args": "vllm_xargs", "beam_width": "n"}
"""Name of the engine's parameter → that of every API's field."""


@dataclass(frozen=True, kw_only=True)
class FieldNames:
    """How a request calls what the engine calls otherwise.

    Attributes:
        prompt, grammar: the fields that are at fault if a prompt or a grammar is.
    """

    prompt: str
    grammar: str

    def of(self, param: str | None) -> str | None:
        """The field for an error's `param`."""
        if param == "prompt":
            return self.prompt
        return self.grammar if param == GRAMMAR_PARAM else _FIELDS.get(param, param)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """RequestErrors raised in here name the field."""
        try:
            yield
        except RequestError as error:
            error.param = self.of(error.param)
            raise


@dataclass(frozen=True, kw_only=True)
class PreparedRequest:
    """Prompts and parameters of one HTTP request. `generation.begin` begins it.

    Attributes:
        request_id: what the request asks for, or the HTTP request's.
        params: for all prompts; `max_tokens` may be None. Of a beam search only n and max_tokens
            count.
        requests: what is run, one per prompt, where `max_tokens` is the default of the API if the
            request has none, or what fits the model if that is less or there is no default.
        parsing: how the answers are taken apart; None: they are not.
        fields: how the request calls what may be at fault.
    """

    model: ServedModel
    request_id: str
    params: SamplingParams
    requests: list[CheckedRequest | CheckedBeamSearch]
    priority: int
    cache_salt: str | None
    parsing: AnswerParsing | None
    fields: FieldNames

    @property
    def prompts(self) -> list[list[int]]:
        """Token ids, one list per prompt."""
        return [request.prompt_token_ids for request in self.requests]

    async def check_grammar(self) -> None:
        """Check it as far as the engine would (`AsyncLLM.check_grammar`). Raises RequestError."""
        request = self.requests[0]
        if isinstance(request, CheckedRequest):
            with self.fields.naming():
                await self.model.engine.check_grammar(request)


async def prepare(
    call: Call,
    request: GenerationRequest,
    model: ServedModel,
    read_prompts: Callable[[], Awaitable[list[list[int]]]],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    default_max_tokens: int | None = None,
    prompt_logprobs: int | None = None,
    parsing: AnswerParsing | None = None,
    prompt_field: str = "prompt",
    format_field: str = "response_format",
    detokenize: bool = True,
) -> PreparedRequest:
    """Check all of a request, then read its prompts and check them.

    Args:
        prompt_field, format_field: how the API calls `prompt` and `response_format`.

    Raises:
        APIError, RequestError: what is wrong with it.
    """
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options needs stream=true", "stream_options")
    if request.resumable and not request.stream:
        raise bad_request("resumable needs stream=true", "resumable")
    if request.stream and request.prompt_logprobs is not None:
        raise bad_request("prompt_logprobs are not streamed; use stream=false", "prompt_logprobs")
    if request.prompt_logprobs is not None:
        limit = call.server.config.max_logprobs
        check_num_logprobs("prompt_logprobs", request.prompt_logprobs, limit)
    max_tokens, default_max_tokens = _limited(request, model, max_tokens, default_max_tokens)
    request_id = request_id_of(call, request.request_id)
    priority = priority_of(call, request.priority, model)
    fields = FieldNames(prompt=prompt_field, grammar=grammar_field(request, format_field))
    with fields.naming():
        beams = beam_search_params(request, max_tokens=max_tokens)
        params = sampling_params(
            request,
            model.defaults,
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            shown_special_token_ids=() if parsing is None else parsing.shown_special_token_ids,
            detokenize=detokenize,
        )
    if beams is not None and prompt_logprobs is not None:
        raise bad_request("echo with logprobs does not go with use_beam_search", "echo")
    params = _within(call.server.config.request_timeout, params)
    num_new = max_tokens or default_max_tokens or 1
    kept = kept_tokens(request, room=model.max_model_len - num_new)
    prompts = [prompt[kept] for prompt in await read_prompts()]
    if parsing is not None and params.structured_outputs is not None:
        [prompt] = prompts
        wanted = parsing.behind_reasoning(params.structured_outputs, prompt, model.engine.tokenizer)
        params = msgspec.structs.replace(params, structured_outputs=wanted)
    _check_num_choices(len(prompts), params)
    limits = [_max_tokens(params, default_max_tokens, model, len(prompt)) for prompt in prompts]
    params_of_prompts: list[SamplingParams] | list[BeamSearchParams]
    if beams is None:
        params_of_prompts = [
            params if most is None else msgspec.structs.replace(params, max_tokens=most)
            for most in limits
        ]
    else:
        params_of_prompts = [msgspec.structs.replace(beams, max_tokens=most) for most in limits]
    with fields.naming():
        requests = await model.engine.check(
            prompts, params_of_prompts, priority=priority, cache_salt=request.cache_salt
        )
    return PreparedRequest(
        model=model,
        request_id=request_id,
        params=params,
        requests=requests,
        priority=priority,
        cache_salt=request.cache_salt,
        parsing=parsing,
        fields=fields,
    )


def _check_num_choices(num_prompts: int, params: SamplingParams) -> None:
    num_choices = num_prompts * params.num_sequences
    if num_choices > MAX_CHOICES:
        name = "n" if params.best_of is None else "best_of"
        raise bad_request(
            f"{num_prompts} prompts with {name}={params.num_sequences} are "
            f"{num_choices} completions; at most {MAX_CHOICES} in one request",
            name,
        )


def _limited(
    request: GenerationRequest, model: ServedModel, max_tokens: int | None, default: int | None
) -> tuple[int | None, int | None]:
    """`max_tokens` and its default, within the server's limit (as vLLM: without an error). Raises
    APIError."""
    limit = model.max_new_tokens
    if limit is None:
        return max_tokens, default
    if request.min_tokens is not None and request.min_tokens > limit:
        raise bad_request(
            f"min_tokens={request.min_tokens} is more than any request gets here: {limit}",
            "min_tokens",
        )
    return max_tokens and min(max_tokens, limit), min(default or limit, limit)


def _max_tokens(
    params: SamplingParams, default: int | None, model: ServedModel, num_prompt_tokens: int
) -> int | None:
    """Most new tokens; None: as many as fit."""
    room = model.max_model_len - num_prompt_tokens
    if params.max_tokens is not None or default is None or room < 1:
        return params.max_tokens
    return min(max(default, params.min_tokens), room)


def request_id_of(call: Call, asked: str | None) -> str:
    """What the request asks for, or the HTTP request's. Raises APIError."""
    request_id = call.request_id if asked is None else asked
    if not is_request_id(request_id):
        raise bad_request(f"request_id must be {REQUEST_ID_RULE}", "request_id")
    return request_id


def priority_of(call: Call, asked: int | None, model: ServedModel) -> int:
    """What a request asks for, but no better than its key allows. Raises APIError."""
    policy = model.engine.config.scheduler.scheduling_policy
    if asked and policy != "priority":
        raise bad_request(
            f"priority={asked} has no effect under the scheduling policy {policy!r}; start "
            "the server with --scheduling-policy priority",
            "priority",
        )
    key = call.record.key
    best = None if key is None else key.account.limits.priority
    if best is None or policy != "priority":
        return asked or 0
    return best if asked is None else max(asked, best)


def _within(seconds: float, params: SamplingParams) -> SamplingParams:
    """The parameters of a request that ends after so many seconds; 0: when it likes."""
    if not seconds:
        return params
    limit = max(1, round(seconds * 1000))
    most = limit if params.max_time_ms is None else min(limit, params.max_time_ms)
    return msgspec.structs.replace(params, max_time_ms=most)


def check_num_logprobs(name: str, value: int, limit: int) -> None:
    """Raise APIError for more alternatives than the server gives (-1 as limit: any number)."""
    if limit >= 0 and not 0 <= value <= limit:
        raise bad_request(f"{name}={value} must be in 0…{limit}", name)
