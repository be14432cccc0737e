"""Sampling fields of a request to `SamplingParams`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.entrypoints.openai.protocol import GenerationRequest
from octavo.entrypoints.openai.structured import structured_outputs
from octavo.errors import RequestError

_SAME_NAME = (
    *("n", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids"),
    *("ignore_eos", "min_tokens", "skip_special_tokens", "spaces_between_special_tokens"),
    *("include_stop_str_in_output", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "logit_bias", "allowed_token_ids", "bad_words"),
    *("prompt_logprobs", "logprob_token_ids", "thinking_token_budget", "stop_regex"),
    *("repetition_detection", "stream_interval", "max_time_ms", "ttft_deadline_ms", "best_of"),
)
SAMPLING_FIELDS = frozenset(
    {*_SAME_NAME, "max_tokens", "logprobs", "structured_outputs", "vllm_xargs"}
)
"""Fields of a request that say how tokens are chosen, and where they end."""
_FROM_GENERATION_CONFIG = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_params(
    request: GenerationRequest,
    defaults: SamplingParams,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    shown_special_token_ids: Sequence[int] = (),
    detokenize: bool = True,
) -> SamplingParams:
    """The request's parameters.

    Args:
        defaults: the model's generation config; its temperature, top_p, top_k, min_p and
            repetition_penalty stand where the request has none.
        prompt_logprobs: alternatives that an echo needs; the request may ask for more.
        shown_special_token_ids: special tokens that are to be found in the text.
        detokenize: a text is to be made.

    Raises:
        RequestError: a value is out of range, or its field is not supported yet.
    """
    values: dict[str, Any] = {name: getattr(defaults, name) for name in _FROM_GENERATION_CONFIG}
    for name in _SAME_NAME:
        if (value := getattr(request, name, None)) is not None:  # best_of: completions alone
            values[name] = value
    if request.vllm_xargs:
        values["extra_args"] = request.vllm_xargs
    if request.logprob_token_ids is not None and logprobs is None:
        raise RequestError(
            "logprob_token_ids needs logprobs; ask for them, or leave it out",
            param="logprob_token_ids",
        )
    if prompt_logprobs is not None:
        values["prompt_logprobs"] = _larger(prompt_logprobs, request.prompt_logprobs)
    if shown_special_token_ids:
        values["shown_special_token_ids"] = list(shown_special_token_ids)
    options = request.stream_options
    values["report_progress"] = options is not None and bool(options.include_progress)
    values["structured_outputs"] = structured_outputs(request)
    kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    return SamplingParams(
        max_tokens=max_tokens,
        logprobs=logprobs,
        output_kind=kind,
        detokenize=detokenize,
        **values,
    )


def sampling_fields(params: SamplingParams) -> dict[str, Any]:
    """The fields (`SAMPLING_FIELDS`) that say what `params` say, whatever the model's defaults."""
    values = msgspec.to_builtins(params, str_keys=True)
    values |= {name: getattr(params, name) for name in (*_FROM_GENERATION_CONFIG, "max_tokens")}
    if params.extra_args:
        values["vllm_xargs"] = params.extra_args
    return {name: value for name, value in values.items() if name in SAMPLING_FIELDS}


def _larger(a: int, b: int | None) -> int:
    """The larger number of alternatives; -1 is all."""
    if b is None:
        return a
    return -1 if -1 in (a, b) else max(a, b)
