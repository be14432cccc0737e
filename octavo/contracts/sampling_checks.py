"""The checks of `SamplingParams`: plain values out of what callers give, then the rules.

How long a collection is gets checked before anything walks over it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.contracts import sampling_limits as limits
from octavo.contracts.checks import (
    are_numbers,
    check_float,
    check_int,
    check_token_ids,
    distinct_ids,
    plain_bias,
    plain_float,
    plain_int,
)
from octavo.errors import RequestError, shown

if TYPE_CHECKING:
    from octavo.contracts.sampling_params import SamplingParams

_INTS = (
    *("n", "best_of", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"),
    *("prompt_logprob_start", "thinking_token_budget", "stream_interval"),
    *("max_time_ms", "ttft_deadline_ms"),
)
_FLOATS = (
    *("temperature", "top_p", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
_BOOLS = (
    *("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"),
    *("spaces_between_special_tokens", "flat_logprobs", "report_progress"),
)
_TEXTS = {
    "stop": (limits.MAX_STOP_STRINGS, limits.MAX_STOP_STRING_LENGTH),
    "stop_regex": (limits.MAX_STOP_REGEXES, limits.MAX_STOP_REGEX_LENGTH),
    "bad_words": (limits.MAX_BAD_WORDS, limits.MAX_BAD_WORD_LENGTH),
}
"""Lists of strings: most strings, most characters of each."""

_IDS = {
    "stop_token_ids": limits.MAX_STOP_TOKEN_IDS,
    "shown_special_token_ids": limits.MAX_SHOWN_SPECIAL_TOKEN_IDS,
    "logprob_token_ids": limits.MAX_LOGPROB_TOKEN_IDS,
    "prompt_logprob_token_ids": limits.MAX_LOGPROB_TOKEN_IDS,
    "allowed_token_ids": limits.MAX_TOKEN_IDS,
    "trace_decode_token_ids": limits.MAX_TOKEN_IDS,
}
"""Lists of token ids: most ids."""

_DISTINCT = ("logprob_token_ids", "prompt_logprob_token_ids", "allowed_token_ids")
_NOT_EMPTY = ("allowed_token_ids", "logprob_token_ids", "prompt_logprob_token_ids")
_LISTS = (list, tuple, set, frozenset)


def normalise(params: SamplingParams) -> None:
    """Plain Python numbers and lists of the struct's own; the neutral spellings made one.

    Raises:
        RequestError: a collection is too long to be looked at.
    """
    for name, (most, _) in _TEXTS.items():
        value = getattr(params, name)
        if isinstance(value, str) and name != "bad_words":
            setattr(params, name, [value])
        elif isinstance(value, (list, tuple)):
            _check_count(name, value, most, "strings")
            setattr(params, name, list(value))
    for name, most in _IDS.items():
        value = getattr(params, name)
        if isinstance(value, _LISTS):
            _check_count(name, value, most, "token ids")
            plain: Callable[[Collection[Any]], list[Any]]
            plain = distinct_ids if name in _DISTINCT else _plain_ids
            setattr(params, name, plain(value))
    for name in _INTS:
        setattr(params, name, plain_int(getattr(params, name)))
    for name in _FLOATS:
        setattr(params, name, plain_float(getattr(params, name)))
    if isinstance(params.logit_bias, Mapping):
        _check_count("logit_bias", params.logit_bias, limits.MAX_TOKEN_IDS, "token ids")
        params.logit_bias = plain_bias(params.logit_bias)
    for name, neutral, kept in (
        ("seed", -1, None),
        ("top_k", -1, 0),
        ("thinking_token_budget", -1, None),
    ):
        value = getattr(params, name)
        if type(value) is int and value == neutral:
            setattr(params, name, kept)
    if params.logprob_token_ids and params.logprobs is None:
        params.logprobs = 0
    if params.prompt_logprob_token_ids and params.prompt_logprobs is None:
        params.prompt_logprobs = 0


def check(params: SamplingParams) -> None:
    """Check a normalised struct. Raises RequestError: value, rule, remedy."""
    _check_numbers(params)
    _check_logprobs(params)
    for name in _BOOLS:
        _check_bool(name, getattr(params, name))
    if params.skip_reading_prefix_cache is not None:
        _check_bool("skip_reading_prefix_cache", params.skip_reading_prefix_cache)
    for name, (_, longest) in _TEXTS.items():
        _check_texts(name, getattr(params, name), longest)
    for name in ("stop", "stop_regex"):
        if getattr(params, name) and not params.detokenize:
            what = "strings need" if name == "stop" else "needs"
            raise RequestError(f"{name} {what} detokenize=True", param=name)
    for name in _IDS:
        _check_ids(name, getattr(params, name))
    _check_logit_bias(params.logit_bias)
    _check_extras(params)


def check_vocabulary(params: SamplingParams, vocab_size: int) -> None:
    """Check the ids in a checked struct against a model. Raises RequestError."""
    for name in (*_IDS, "logit_bias"):
        ids = getattr(params, name)
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            wrong = next(i for i in ids if not 0 <= i < vocab_size)
            raise RequestError(
                f"{name} holds {shown(wrong)}; the model's ids are 0…{vocab_size - 1}", param=name
            )
    for name in ("logprobs", "prompt_logprobs"):
        k = getattr(params, name)
        if k is not None and k > vocab_size:
            raise RequestError(
                f"{name}={k} is more than the vocabulary of {vocab_size}; use -1", param=name
            )


# -------------------------------------------------------------------- inside


def _check_numbers(params: SamplingParams) -> None:
    check_int("n", params.n, 1, limits.MAX_N)
    if params.best_of is not None:
        check_int("best_of", params.best_of, 1, limits.MAX_N)
        if params.best_of < params.n:
            raise RequestError(
                f"best_of={params.best_of} is less than n={params.n}; the n best of them are "
                "returned",
                param="best_of",
            )
    check_float("temperature", params.temperature, 0.0, 2.0)
    check_float("top_p", params.top_p, 0.0, 1.0, low_open=True)
    check_float("min_p", params.min_p, 0.0, 1.0)
    check_int("top_k", params.top_k, 0, 2**31 - 1, note="0 or -1 turns it off")
    if params.seed is not None:
        check_int("seed", params.seed, limits.SEED_MIN, limits.SEED_MAX)
    if params.max_tokens is not None:
        check_int("max_tokens", params.max_tokens, 1, 2**31 - 1)
    check_int("min_tokens", params.min_tokens, 0, 2**31 - 1)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise RequestError(
            f"min_tokens={params.min_tokens} is more than max_tokens={params.max_tokens}",
            param="min_tokens",
        )
    for name in ("presence_penalty", "frequency_penalty"):
        check_float(name, getattr(params, name), -2.0, 2.0)
    repetition = params.repetition_penalty
    check_float("repetition_penalty", repetition, 0.0, limits.MAX_PENALTY, low_open=True)
    if params.thinking_token_budget is not None:
        check_int(
            "thinking_token_budget", params.thinking_token_budget, 0, 2**31 - 1, note="-1 is no end"
        )
    check_int("stream_interval", params.stream_interval, 1, 2**31 - 1)
    for name in ("max_time_ms", "ttft_deadline_ms"):
        if (value := getattr(params, name)) is not None:
            check_int(name, value, 1, limits.MAX_MILLISECONDS)


def _check_logprobs(params: SamplingParams) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        if (k := getattr(params, name)) is not None:
            check_int(name, k, -1, limits.MAX_LOGPROBS, note="-1 is all")
    check_int("prompt_logprob_start", params.prompt_logprob_start, 0, 2**31 - 1)
    if params.prompt_logprob_start and params.prompt_logprobs is None:
        raise RequestError(
            f"prompt_logprob_start={params.prompt_logprob_start} needs prompt_logprobs; 0 gives "
            "those of the prompt's own tokens",
            param="prompt_logprob_start",
        )
    if params.prompt_logprobs is not None and params.skip_reading_prefix_cache is False:
        raise RequestError(
            "skip_reading_prefix_cache=False cannot be had with prompt_logprobs, which cached "
            "tokens do not have; leave it out",
            param="skip_reading_prefix_cache",
        )


def _check_extras(params: SamplingParams) -> None:
    """Objects for logits processors, and these themselves; a trace beside a grammar."""
    if params.trace_decode_token_ids and params.structured_outputs is not None:
        raise RequestError(
            "trace_decode_token_ids does not go with structured_outputs, whose grammar may forbid "
            "what was recorded; leave one of them out",
            param="trace_decode_token_ids",
        )
    args = params.extra_args
    if args is not None:
        if not isinstance(args, dict) or not all(isinstance(name, str) for name in args):
            raise RequestError(
                f"extra_args={shown(args)} must map names to values", param="extra_args"
            )
        try:
            num_bytes = len(msgspec.msgpack.encode(args))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise RequestError(
                f"extra_args cannot be sent to the engine: {error}; use plain values",
                param="extra_args",
            ) from None
        if num_bytes > limits.MAX_EXTRA_ARGS_BYTES:
            raise RequestError(
                f"extra_args take {num_bytes} bytes; at most {limits.MAX_EXTRA_ARGS_BYTES}",
                param="extra_args",
            )
    processors = params.logits_processors
    if processors is not None:
        if not isinstance(processors, (list, tuple)) or not all(map(callable, processors)):
            raise RequestError(
                f"logits_processors={shown(processors)} must be a list of callables",
                param="logits_processors",
            )
        _check_count("logits_processors", processors, limits.MAX_LOGITS_PROCESSORS, "callables")


def _check_count(name: str, values: Collection[Any], most: int, what: str) -> None:
    if len(values) > most:
        raise RequestError(f"{name} has {len(values)} {what}; at most {most}", param=name)


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise RequestError(f"{name}={shown(value)} must be true or false", param=name)


def _check_texts(name: str, texts: Any, longest: int) -> None:
    if texts is None:
        return
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        kinds = "a list of strings" if name == "bad_words" else "a string or a list of strings"
        raise RequestError(f"{name}={shown(texts)} must be {kinds}", param=name)
    if not all(texts):
        raise RequestError(f"{name} holds an empty string; leave it out", param=name)
    for text in texts:
        if len(text) > longest:
            raise RequestError(
                f"{name} holds a string longer than {longest} characters", param=name
            )
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise RequestError(
                f"{name}={shown(texts)} holds half a surrogate pair, which no text has", param=name
            )


def _plain_ids(ids: Collection[Any]) -> list[Any]:
    return [plain_int(i) for i in ids]


def _check_ids(name: str, ids: Any) -> None:
    if ids is None:
        return
    if not isinstance(ids, list) or (name in _NOT_EMPTY and not ids):
        least = " of at least one token id" if name in _NOT_EMPTY else " of token ids"
        raise RequestError(f"{name}={shown(ids)} must be a list{least}", param=name)
    if name == "stop_token_ids":  # whether they are the model's is for check_vocabulary
        if not all(type(i) is int for i in ids):
            raise RequestError(f"{name}={shown(ids)} must be a list of token ids", param=name)
        return
    check_token_ids(name, ids)


def _check_logit_bias(bias: Any) -> None:
    if bias is None:
        return
    if not isinstance(bias, dict):
        raise RequestError(
            f"logit_bias={shown(bias)} must map token ids to numbers", param="logit_bias"
        )
    check_token_ids("logit_bias", bias)
    if are_numbers(bias.values()):
        return
    for token_id, value in bias.items():
        if type(value) is not float or value != value:
            raise RequestError(
                f"logit_bias gives token {token_id} the bias {shown(value)}; it must be a number",
                param="logit_bias",
            )
