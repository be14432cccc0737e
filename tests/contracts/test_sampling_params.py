"""SamplingParams: every field's values, and what is kept of them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from octavo.contracts.sampling_limits import (
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_LOGPROBS,
    MAX_MILLISECONDS,
    MAX_N,
    MAX_STOP_REGEX_LENGTH,
    MAX_STOP_STRING_LENGTH,
    SEED_MAX,
    SEED_MIN,
)
from octavo.contracts.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
)

NAN, INF = math.nan, math.inf
CALLABLE = len
STUCK = RepetitionDetectionParams(max_pattern_size=3, min_count=2)


def test_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (
        1,
        1,
        1,
        0,
        0,
    )
    assert (params.max_tokens, params.min_tokens, params.logprobs, params.seed) == (
        16,
        0,
        None,
        None,
    )
    assert (params.stop, params.stop_token_ids, params.ignore_eos) == (None, None, False)
    assert params.detokenize
    assert params.skip_special_tokens
    assert not params.include_stop_str_in_output
    assert params.output_kind is RequestOutputKind.CUMULATIVE


ACCEPTED = [  # (field, value, what is kept)
    ("n", 1, 1),
    ("n", MAX_N, MAX_N),
    ("n", np.int64(3), 3),
    ("temperature", 0, 0.0),
    ("temperature", 2, 2.0),
    ("temperature", 1e-38, 1e-38),
    ("temperature", np.float32(0.5), 0.5),
    ("temperature", Fraction(1, 4), 0.25),
    ("top_p", 1, 1.0),
    ("top_p", 1e-9, 1e-9),
    ("top_p", np.float64(0.9), 0.9),
    ("top_k", 0, 0),
    ("top_k", -1, 0),
    ("top_k", 9_999_999, 9_999_999),
    ("min_p", 0, 0.0),
    ("min_p", 1, 1.0),
    ("seed", None, None),
    ("seed", -1, None),
    ("seed", 0, 0),
    ("seed", SEED_MIN, SEED_MIN),
    ("seed", SEED_MAX, SEED_MAX),
    ("seed", np.uint64(SEED_MAX), SEED_MAX),
    ("stop", None, None),
    ("stop", [], []),
    ("stop", "end", ["end"]),
    ("stop", ("a", "b"), ["a", "b"]),
    ("stop", ["x" * MAX_STOP_STRING_LENGTH], ["x" * MAX_STOP_STRING_LENGTH]),
    ("stop", ["é", "🌶️"], ["é", "🌶️"]),
    ("stop_token_ids", [], []),
    ("stop_token_ids", [2, 0], [2, 0]),
    ("stop_token_ids", (7,), [7]),
    ("stop_token_ids", {7}, [7]),
    ("stop_token_ids", [np.int32(7)], [7]),
    ("ignore_eos", True, True),
    ("max_tokens", None, None),
    ("max_tokens", 1, 1),
    ("max_tokens", 2**31 - 1, 2**31 - 1),
    ("min_tokens", 16, 16),
    ("logprobs", 0, 0),
    ("logprobs", -1, -1),
    ("logprobs", MAX_LOGPROBS, MAX_LOGPROBS),
    ("detokenize", False, False),
    ("skip_special_tokens", False, False),
    ("include_stop_str_in_output", True, True),
    ("output_kind", RequestOutputKind.DELTA, RequestOutputKind.DELTA),
    ("presence_penalty", 0, 0.0),
    ("presence_penalty", -2, -2.0),
    ("presence_penalty", np.float32(2), 2.0),
    ("frequency_penalty", -2, -2.0),
    ("frequency_penalty", 2.0, 2.0),
    ("repetition_penalty", 1, 1.0),
    ("repetition_penalty", 1e-45, 1e-45),
    ("repetition_penalty", 3.4e38, 3.4e38),
    ("prompt_logprobs", None, None),
    ("prompt_logprobs", 0, 0),
    ("prompt_logprobs", -1, -1),
    ("prompt_logprobs", MAX_LOGPROBS, MAX_LOGPROBS),
    ("logit_bias", None, None),
    ("logit_bias", {}, {}),
    ("logit_bias", {5: 1}, {5: 1.0}),
    ("logit_bias", {"5": -1.5, "0": 2}, {5: -1.5, 0: 2.0}),
    ("logit_bias", {0: 100.5, 1: -1e300, 2: INF}, {0: 100.0, 1: -100.0, 2: 100.0}),
    ("logit_bias", {np.int32(3): np.float32(0.5)}, {3: 0.5}),
    ("allowed_token_ids", None, None),
    ("allowed_token_ids", [5], [5]),
    ("allowed_token_ids", (5, 0, 5), [5, 0]),
    ("allowed_token_ids", [np.int32(5), 7, 5], [5, 7]),
    ("allowed_token_ids", {np.int64(7)}, [7]),
    ("allowed_token_ids", [2**31 - 1], [2**31 - 1]),
    ("bad_words", None, None),
    ("bad_words", [], []),
    ("bad_words", ("a", " b", "é🌶️"), ["a", " b", "é🌶️"]),
    ("bad_words", ["x"] * MAX_BAD_WORDS, ["x"] * MAX_BAD_WORDS),
    ("bad_words", ["x" * MAX_BAD_WORD_LENGTH], ["x" * MAX_BAD_WORD_LENGTH]),
    ("best_of", None, None),
    ("best_of", 1, 1),
    ("best_of", np.int64(MAX_N), MAX_N),
    ("stop_regex", None, None),
    ("stop_regex", "a+b", ["a+b"]),
    ("stop_regex", ("a", r"\d"), ["a", r"\d"]),
    ("stop_regex", ["x" * MAX_STOP_REGEX_LENGTH], ["x" * MAX_STOP_REGEX_LENGTH]),
    ("shown_special_token_ids", None, None),
    ("shown_special_token_ids", {7}, [7]),
    ("logprob_token_ids", None, None),
    ("logprob_token_ids", (5, 0, 5), [5, 0]),
    (
        "logprob_token_ids",
        list(range(MAX_LOGPROB_TOKEN_IDS)),
        list(range(MAX_LOGPROB_TOKEN_IDS)),
    ),
    ("prompt_logprob_token_ids", None, None),
    ("prompt_logprob_token_ids", {np.int32(7)}, [7]),
    ("prompt_logprob_start", 0, 0),
    ("skip_reading_prefix_cache", None, None),
    ("skip_reading_prefix_cache", True, True),
    ("skip_reading_prefix_cache", False, False),
    ("stream_interval", 1, 1),
    ("stream_interval", 10**6, 10**6),
    ("report_progress", True, True),
    ("flat_logprobs", True, True),
    ("thinking_token_budget", None, None),
    ("thinking_token_budget", -1, None),
    ("thinking_token_budget", 0, 0),
    ("repetition_detection", None, None),
    ("repetition_detection", STUCK, STUCK),
    ("repetition_detection", {"max_pattern_size": 3, "min_count": 2}, STUCK),
    ("repetition_detection", {"max_pattern_size": 0}, None),
    ("max_time_ms", None, None),
    ("max_time_ms", 1, 1),
    ("ttft_deadline_ms", MAX_MILLISECONDS, MAX_MILLISECONDS),
    ("trace_decode_token_ids", None, None),
    ("trace_decode_token_ids", [], []),
    ("trace_decode_token_ids", (3, 3), [3, 3]),
    ("logits_processors", None, None),
    ("logits_processors", [CALLABLE], [CALLABLE]),
    ("extra_args", None, None),
    ("extra_args", {"x": [1, "y", None, {"z": 0.5}]}, {"x": [1, "y", None, {"z": 0.5}]}),
    # The neutral value of what is not there yet.
    ("structured_outputs", None, None),
]


@pytest.mark.parametrize(("field", "given", "kept"), ACCEPTED)
def test_accepted(field: str, given: Any, kept: Any) -> None:
    value = getattr(SamplingParams(**{field: given}), field)
    assert value == kept
    assert type(value) is type(kept)


def test_the_callers_lists_are_copied() -> None:
    stop, ids, bias = ["a"], [1], {1: 1.0}
    params = SamplingParams(
        stop=stop, stop_token_ids=ids, allowed_token_ids=ids, bad_words=stop, logit_bias=bias
    )
    stop.append("")
    ids.append(-5)
    bias[-1] = NAN
    assert params.stop_strings == params.bad_words == ["a"]
    assert params.stop_token_ids == params.allowed_token_ids == [1]
    assert params.logit_bias == {1: 1.0}


def test_unknown_field_is_named() -> None:
    with pytest.raises(TypeError, match="watermarking"):
        SamplingParams(watermarking=True)  # type: ignore[call-arg]


def test_is_greedy() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert not SamplingParams(temperature=1e-38).is_greedy


def test_a_clone_shares_nothing() -> None:
    """Libraries that were written for vLLM copy parameters and edit the copy."""
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0}, logits_processors=[print], seed=3)
    copy = params.clone()
    assert copy == params
    assert copy.stop is not None
    assert copy.logit_bias is not None
    copy.stop += ["b"]
    copy.logit_bias[2] = 1.0
    copy.seed = 4
    assert (params.stop, params.logit_bias, params.seed) == (["a"], {1: 2.0}, 3)
    assert copy.logits_processors == [print]
