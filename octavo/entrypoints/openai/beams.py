"""`use_beam_search`: the fields of a request that make a beam search, as vLLM has them."""

from __future__ import annotations

from typing import Any

from octavo.contracts.beam_search_params import BeamSearchParams
from octavo.entrypoints.openai.errors import bad_request
from octavo.entrypoints.openai.protocol import GenerationRequest
from octavo.entrypoints.openai.structured import structured_outputs

_SAME_NAME = ("ignore_eos", "length_penalty", "early_stopping", "include_stop_str_in_output")

BEAM_SEARCH_FIELDS = frozenset({"use_beam_search", "length_penalty", "early_stopping"})
"""Fields of a request that only a beam search has."""

_NOT_WITH_BEAMS = (
    *("top_p", "top_k", "min_p", "seed", "stop", "stop_regex", "stop_token_ids", "min_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("allowed_token_ids", "bad_words", "prompt_logprobs", "logprob_token_ids"),
    *("thinking_token_budget", "repetition_detection", "stream_interval", "vllm_xargs"),
    *("max_time_ms", "ttft_deadline_ms", "best_of"),
)


def beam_search_params(
    request: GenerationRequest, *, max_tokens: int | None
) -> BeamSearchParams | None:
    """`n` beams, if the request asks for a beam search.

    Raises:
        APIError, RequestError: a field that goes with beams alone or with sampling alone.
    """
    if not request.use_beam_search:
        for name in ("length_penalty", "early_stopping"):
            if getattr(request, name) is not None:
                raise bad_request(f"{name} needs use_beam_search=true", name)
        return None
    if request.stream:
        raise bad_request("a beam search is not streamed; use stream=false", "stream")
    if request.temperature:
        raise bad_request(
            f"temperature={request.temperature} has no effect on a beam search; leave it out",
            "temperature",
        )
    for name in _NOT_WITH_BEAMS:
        if getattr(request, name, None) is not None:
            raise bad_request(f"{name} does not go with use_beam_search; leave it out", name)
    if structured_outputs(request) is not None:
        raise bad_request(
            "structured_outputs and response_format do not go with use_beam_search; leave them out",
            "structured_outputs",
        )
    values: dict[str, Any] = {
        name: value for name in _SAME_NAME if (value := getattr(request, name)) is not None
    }
    beam_width = 1 if request.n is None else request.n
    return BeamSearchParams(beam_width=beam_width, max_tokens=max_tokens, **values)


def beam_search_fields(params: BeamSearchParams, *, logprobs: int | None) -> dict[str, Any]:
    """The fields of a request that ask for this beam search, and for so many alternatives."""
    fields: dict[str, Any] = {"use_beam_search": True, "n": params.beam_width}
    fields |= {name: getattr(params, name) for name in ("max_tokens", *_SAME_NAME)}
    return fields if logprobs is None else {**fields, "logprobs": logprobs}
