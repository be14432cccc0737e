"""Rules of `SamplingParams` that only an engine can check, and what each completion gets."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from octavo.contracts.sampling_limits import MAX_LOGPROB_VALUES
from octavo.contracts.sampling_params import SamplingParams
from octavo.errors import RequestError
from octavo.sample.custom import check_callables
from octavo.sample.logits_processor import LogitsProcessor


def check_logits_processors(
    params: SamplingParams, processors: Sequence[type[LogitsProcessor]]
) -> None:
    """Callables, and what the engine's processors say of `extra_args`. Raises RequestError."""
    check_callables(params.logits_processors or ())
    if params.extra_args and not processors:
        raise RequestError(
            "extra_args are for logits processors, and the engine has none; start it with "
            "logits_processors, or leave them out",
            param="extra_args",
        )
    for kind in processors:
        try:
            kind.validate_params(params)
        except RequestError:
            raise
        except Exception as error:
            raise RequestError(f"{kind.__name__}: {error}", param="extra_args") from error


def check_num_logprobs(
    params: SamplingParams, max_tokens: int, num_prompt_tokens: int, vocab_size: int
) -> None:
    """Refuse more log probabilities than one request may hold in memory. Raises RequestError."""
    for name, k, listed, num_tokens in (
        ("logprobs", params.logprobs, params.logprob_token_ids, max_tokens),
        (
            "prompt_logprobs",
            params.prompt_logprobs,
            params.prompt_logprob_token_ids,
            num_prompt_tokens - params.prompt_logprob_start,
        ),
    ):
        if k is None:
            continue
        per_token = 1 + (vocab_size if k == -1 else k) + len(listed or ())
        if num_tokens * per_token > MAX_LOGPROB_VALUES:
            raise RequestError(
                f"{name}={k} of up to {num_tokens} tokens are {num_tokens * per_token} log "
                f"probabilities; at most {MAX_LOGPROB_VALUES}: ask for fewer, or for those of "
                "fewer tokens",
                param=name,
            )
    if params.prompt_logprob_start > num_prompt_tokens:
        raise RequestError(
            f"prompt_logprob_start={params.prompt_logprob_start} is behind the prompt's "
            f"{num_prompt_tokens} tokens",
            param="prompt_logprob_start",
        )


def first_token_ids(
    params: SamplingParams, bad_words: Sequence[Sequence[int]], eos_token_ids: Sequence[int]
) -> list[int] | None:
    """Those of `allowed_token_ids` with which an output can begin; None: there is no such list.

    Args:
        bad_words: as token ids.
        eos_token_ids: of the model.

    Raises:
        RequestError: there is none.
    """
    if params.allowed_token_ids is None:
        return None
    masked = {word[0] for word in bad_words if len(word) == 1}
    if params.min_tokens > 0:
        masked.update(params.stop_token_ids or ())
        ignores_eos = params.ignore_eos and params.structured_outputs is None
        masked.update(() if ignores_eos else eos_token_ids)
    first = [i for i in params.allowed_token_ids if i not in masked]
    if not first:
        raise RequestError(
            "bad_words and min_tokens exclude each of the allowed_token_ids, so that no token may "
            "come first; allow more tokens",
            param="allowed_token_ids",
        )
    return first


def per_completion(params: SamplingParams) -> tuple[SamplingParams, SamplingParams]:
    """The parameters of the first completion and of the others. One is enough to tell about the
    prompt; the others share what it computed. A ranking needs the log probability of each."""
    first = params
    if params.best_of is not None and params.logprobs is None:
        first = msgspec.structs.replace(params, logprobs=0)
    if params.prompt_logprobs is None and not params.report_progress:
        return first, first
    without = {"prompt_logprobs": None, "prompt_logprob_token_ids": None, "prompt_logprob_start": 0}
    return first, msgspec.structs.replace(first, report_progress=False, **without)
