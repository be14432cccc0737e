"""Sampling fields of a request to `SamplingParams`."""

from __future__ import annotations

from typing import Any

from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.entrypoints.openai.errors import bad_request
from octavo.entrypoints.openai.protocol import GenerationRequest
from octavo.errors import shown

_SAME_NAME = (
    *("n", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids"),
    *("ignore_eos", "min_tokens", "skip_special_tokens", "spaces_between_special_tokens"),
    *("include_stop_str_in_output", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "allowed_token_ids", "bad_words", "prompt_logprobs"),
    *("logprob_token_ids", "thinking_token_budget"),
)
_FROM_GENERATION_CONFIG = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_params(
    request: GenerationRequest,
    defaults: SamplingParams,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """The request's parameters.

    Args:
        defaults: the model's generation config; its temperature, top_p, top_k, min_p and
            repetition_penalty stand where the request has none.

    Raises:
        RequestError: a value is out of range, or its field is not supported yet.
        APIError: logit_bias has a key that is no token id.
    """
    values: dict[str, Any] = {name: getattr(defaults, name) for name in _FROM_GENERATION_CONFIG}
    for name in _SAME_NAME:
        if (value := getattr(request, name)) is not None:
            values[name] = value
    if request.logit_bias:
        values["logit_bias"] = _logit_bias(request.logit_bias)
    if prompt_logprobs is not None:
        values["prompt_logprobs"] = prompt_logprobs
    kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    return SamplingParams(max_tokens=max_tokens, logprobs=logprobs, output_kind=kind, **values)


def _logit_bias(bias: dict[str, float]) -> dict[int, float]:
    result = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise bad_request(
                f"logit_bias has the key {shown(key)}, which is no token id", "logit_bias"
            )
        result[int(key)] = value
    return result
