"""What SamplingParams refuse, and how it is said, field by field."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.sampling_limits import (
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_LOGPROBS,
    MAX_MILLISECONDS,
    MAX_N,
    MAX_PATTERN_COUNT,
    MAX_PATTERN_SIZE,
    MAX_STOP_REGEX_LENGTH,
    MAX_STOP_REGEXES,
    MAX_STOP_STRING_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOKEN_IDS,
    SEED_MAX,
    SEED_MIN,
)
from octavo.contracts.sampling_params import (
    RepetitionDetectionParams,
    SamplingParams,
)
from octavo.contracts.structured_outputs import StructuredOutputsParams
from octavo.errors import RequestError
from tests.contracts.test_sampling_params import ACCEPTED

NAN, INF = math.nan, math.inf
CALLABLE = len


class Endless(list[Any]):
    """A list that says it is long, and must not be walked over."""

    def __len__(self) -> int:
        return 2**40

    def __iter__(self) -> Any:
        raise AssertionError("it was walked over")


REFUSED = [  # (field, value, what the error says)
    ("n", 0, f"n=0 must be in 1…{MAX_N}"),
    ("n", MAX_N + 1, f"must be in 1…{MAX_N}"),
    pytest.param("n", 10**5000, "n=<a number of", id="n-huge"),
    ("n", 1.5, "n=1.5 must be an integer"),
    ("n", True, "n=True must be an integer"),
    ("n", "2", "n='2' must be an integer"),
    ("n", None, "must be an integer"),
    ("temperature", -0.1, "temperature=-0.1 must be in [0, 2]"),
    ("temperature", 2.1, "must be in [0, 2]"),
    ("temperature", NAN, "temperature=nan must be in [0, 2]"),
    ("temperature", INF, "temperature=inf must be in [0, 2]"),
    pytest.param("temperature", 10**400, "must be a number", id="temperature-huge"),
    ("temperature", "hot", "temperature='hot' must be a number"),
    ("temperature", True, "must be a number"),
    ("temperature", None, "must be a number"),
    ("temperature", 1j, "must be a number"),
    ("top_p", 0, "top_p=0.0 must be in (0, 1]"),
    ("top_p", NAN, "must be in (0, 1]"),
    ("top_p", 1.0001, "must be in (0, 1]"),
    ("top_p", -1, "must be in (0, 1]"),
    ("top_k", -2, "0 or -1 turns it off"),
    ("top_k", 2**31, "top_k=2147483648 must be in"),
    ("top_k", 1.0, "must be an integer"),
    ("min_p", -0.1, "must be in [0, 1]"),
    ("min_p", 1.1, "must be in [0, 1]"),
    ("min_p", NAN, "must be in [0, 1]"),
    ("seed", SEED_MIN - 1, "seed="),
    ("seed", SEED_MAX + 1, "seed="),
    ("seed", 1.0, "seed=1.0 must be an integer"),
    ("seed", False, "must be an integer"),
    ("seed", np.array([1, 2]), "must be an integer"),
    ("top_k", np.array([1, 2]), "must be an integer"),
    ("stop", 5, "stop=5 must be a string or a list of strings"),
    ("stop", [5], "must be a string or a list of strings"),
    ("stop", {"a": 1}, "must be a string or a list of strings"),
    ("stop", b"x", "must be a string or a list of strings"),
    ("stop", "", "empty string"),
    ("stop", ["a", ""], "empty string"),
    ("stop", ["x"] * (MAX_STOP_STRINGS + 1), f"at most {MAX_STOP_STRINGS}"),
    ("stop", "x" * (MAX_STOP_STRING_LENGTH + 1), f"longer than {MAX_STOP_STRING_LENGTH}"),
    ("stop", "\ud800", "half a surrogate pair"),
    ("stop_token_ids", 2, "must be a list of token ids"),
    ("stop_token_ids", "2", "must be a list of token ids"),
    ("stop_token_ids", ["2"], "must be a list of token ids"),
    ("stop_token_ids", [True], "must be a list of token ids"),
    ("stop_token_ids", [1.0], "must be a list of token ids"),
    ("stop_token_ids", [0] * (MAX_STOP_TOKEN_IDS + 1), f"at most {MAX_STOP_TOKEN_IDS}"),
    ("ignore_eos", 1, "ignore_eos=1 must be true or false"),
    ("ignore_eos", None, "must be true or false"),
    ("max_tokens", 0, "max_tokens=0 must be in"),
    ("max_tokens", -1, "max_tokens=-1 must be in"),
    ("max_tokens", 1.5, "must be an integer"),
    ("max_tokens", "5", "must be an integer"),
    ("max_tokens", 2**31, "must be in"),
    ("min_tokens", -1, "must be in"),
    ("min_tokens", 17, "min_tokens=17 is more than max_tokens=16"),
    ("logprobs", -2, "-1 is all"),
    ("logprobs", MAX_LOGPROBS + 1, f"-1…{MAX_LOGPROBS}"),
    ("logprobs", True, "must be an integer"),
    ("detokenize", "yes", "detokenize='yes' must be true or false"),
    ("skip_special_tokens", 0, "must be true or false"),
    ("spaces_between_special_tokens", "no", "must be true or false"),
    ("include_stop_str_in_output", "no", "must be true or false"),
    ("output_kind", 0, "must be a RequestOutputKind"),
    ("output_kind", "delta", "must be a RequestOutputKind"),
    ("presence_penalty", 2.1, "presence_penalty=2.1 must be in [-2, 2]"),
    ("presence_penalty", NAN, "presence_penalty=nan must be in [-2, 2]"),
    ("presence_penalty", None, "must be a number"),
    ("frequency_penalty", -2.1, "frequency_penalty=-2.1 must be in [-2, 2]"),
    ("frequency_penalty", "x", "frequency_penalty='x' must be a number"),
    ("repetition_penalty", 0, "repetition_penalty=0.0 must be in (0, 3.4e+38]"),
    ("repetition_penalty", -1.1, "must be in (0, 3.4e+38]"),
    ("repetition_penalty", NAN, "must be in (0, 3.4e+38]"),
    ("repetition_penalty", INF, "must be in (0, 3.4e+38]"),
    ("repetition_penalty", True, "must be a number"),
    ("prompt_logprobs", -2, "-1 is all"),
    ("prompt_logprobs", MAX_LOGPROBS + 1, f"-1…{MAX_LOGPROBS}"),
    ("prompt_logprobs", True, "must be an integer"),
    ("logit_bias", [1], "logit_bias=[1] must map token ids to numbers"),
    ("logit_bias", {"abc": 1}, "logit_bias holds 'abc', which is no token id"),
    ("logit_bias", {"²": 1}, "holds '²', which is no token id"),
    ("logit_bias", {"-1": 1}, "holds '-1', which is no token id"),
    ("logit_bias", {"1" * 11: 1}, "which is no token id"),
    *(
        ("logit_bias", {key: 1}, f"holds {key!r}, which is no token id")
        for key in ("05", "00", "+5", " 5", "5\n", "5_0", "٥", "5.0", "")
    ),
    ("logit_bias", {-1: 1}, "holds -1, which is no token id"),
    ("logit_bias", {2**31: 1}, "holds 2147483648, which is no token id"),
    ("logit_bias", {1.0: 1}, "holds 1.0, which is no token id"),
    ("logit_bias", {True: 1}, "holds True, which is no token id"),
    ("logit_bias", {None: 1}, "holds None, which is no token id"),
    ("logit_bias", {5: "x"}, "gives token 5 the bias 'x'"),
    ("logit_bias", {5: NAN}, "gives token 5 the bias nan"),
    ("logit_bias", {4: 1.0, 5: NAN, 6: -1.0}, "gives token 5 the bias nan"),
    ("logit_bias", {5: None}, "gives token 5 the bias None"),
    ("logit_bias", {5: 1, "5": 2}, "names a token id twice"),
    ("allowed_token_ids", [], "allowed_token_ids=[] must be a list of at least one"),
    ("allowed_token_ids", 5, "must be a list of at least one token id"),
    ("allowed_token_ids", [5, -1], "holds -1, which is no token id"),
    ("allowed_token_ids", [2**70], "which is no token id"),
    ("allowed_token_ids", ["5"], "holds '5', which is no token id"),
    ("allowed_token_ids", [True], "holds True, which is no token id"),
    ("allowed_token_ids", [1, True], "holds True, which is no token id"),
    ("bad_words", "x", "bad_words='x' must be a list of strings"),
    ("bad_words", [5], "must be a list of strings"),
    ("bad_words", [""], "holds an empty string"),
    ("bad_words", ["x"] * (MAX_BAD_WORDS + 1), f"at most {MAX_BAD_WORDS}"),
    ("bad_words", ["x" * (MAX_BAD_WORD_LENGTH + 1)], f"longer than {MAX_BAD_WORD_LENGTH}"),
    ("bad_words", ["\udc00"], "half a surrogate pair"),
    ("best_of", 0, f"best_of=0 must be in 1…{MAX_N}"),
    ("best_of", MAX_N + 1, f"must be in 1…{MAX_N}"),
    ("best_of", 1.5, "best_of=1.5 must be an integer"),
    ("stop_regex", 5, "stop_regex=5 must be a string or a list of strings"),
    ("stop_regex", "", "stop_regex holds an empty string"),
    ("stop_regex", ["x"] * (MAX_STOP_REGEXES + 1), f"at most {MAX_STOP_REGEXES}"),
    ("stop_regex", "x" * (MAX_STOP_REGEX_LENGTH + 1), f"longer than {MAX_STOP_REGEX_LENGTH}"),
    ("logprob_token_ids", [], "logprob_token_ids=[] must be a list of at least one token id"),
    ("logprob_token_ids", [-1], "logprob_token_ids holds -1, which is no token id"),
    ("shown_special_token_ids", [-1], "shown_special_token_ids holds -1, which is no token id"),
    ("shown_special_token_ids", range(2), "shown_special_token_ids=range(0, 2) must be a list"),
    (
        "logprob_token_ids",
        [0] * (MAX_LOGPROB_TOKEN_IDS + 1),
        f"logprob_token_ids has 129 token ids; at most {MAX_LOGPROB_TOKEN_IDS}",
    ),
    ("prompt_logprob_token_ids", 5, "must be a list of at least one token id"),
    ("prompt_logprob_start", -1, "prompt_logprob_start=-1 must be in"),
    ("prompt_logprob_start", 3, "prompt_logprob_start=3 needs prompt_logprobs"),
    ("skip_reading_prefix_cache", 1, "skip_reading_prefix_cache=1 must be true or false"),
    ("stream_interval", 0, "stream_interval=0 must be in 1…"),
    ("stream_interval", None, "stream_interval=None must be an integer"),
    ("report_progress", 1, "report_progress=1 must be true or false"),
    ("flat_logprobs", "yes", "flat_logprobs='yes' must be true or false"),
    ("thinking_token_budget", -2, "-1 is no end"),
    ("thinking_token_budget", 1.0, "thinking_token_budget=1.0 must be an integer"),
    ("repetition_detection", 5, "repetition_detection=5 must be a RepetitionDetectionParams"),
    ("repetition_detection", {"max_pattern_size": 3}, "missing required field `min_count`"),
    ("repetition_detection", {"size": 3}, "unknown field `size`"),
    (
        "repetition_detection",
        {"max_pattern_size": 3, "min_count": 2, "size": 3},
        "unknown field `size`",
    ),
    ("max_time_ms", 0, f"max_time_ms=0 must be in 1…{MAX_MILLISECONDS}"),
    ("max_time_ms", 0.5, "max_time_ms=0.5 must be an integer"),
    ("ttft_deadline_ms", -1, "ttft_deadline_ms=-1 must be in"),
    ("ttft_deadline_ms", MAX_MILLISECONDS + 1, "must be in"),
    ("trace_decode_token_ids", "x", "must be a list of token ids"),
    ("trace_decode_token_ids", [2.0], "holds 2.0, which is no token id"),
    ("logits_processors", CALLABLE, "must be a list of callables"),
    ("logits_processors", ["a.b:C"], "logits_processors=['a.b:C'] must be a list of callables"),
    ("logits_processors", [CALLABLE] * 17, "logits_processors has 17 callables; at most 16"),
    ("extra_args", [1], "extra_args=[1] must map names to values"),
    ("extra_args", {1: 2}, "must map names to values"),
    ("extra_args", {"x": object()}, "extra_args cannot be sent to the engine"),
    ("extra_args", {"x": "y" * 65536}, "extra_args take 65544 bytes; at most 65536"),
    ("structured_outputs", {}, "must be a StructuredOutputsParams"),
    *(
        pytest.param(name, Endless(), f"{name} has {2**40} ", id=f"{name}-endless")
        for name in (
            *("stop", "stop_regex", "bad_words", "stop_token_ids", "allowed_token_ids"),
            *("logprob_token_ids", "prompt_logprob_token_ids", "trace_decode_token_ids"),
        )
    ),
    pytest.param(
        "logit_bias",
        dict.fromkeys(range(MAX_TOKEN_IDS + 1), 1.0),
        f"at most {MAX_TOKEN_IDS}",
        id="logit_bias-many",
    ),
]


@pytest.mark.parametrize(("field", "value", "says"), REFUSED)
def test_refused(field: str, value: Any, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert says in str(caught.value)
    assert caught.value.param == field
    assert len(str(caught.value)) < 300


def test_every_field_is_accepted_or_refused() -> None:
    rows = [*ACCEPTED, *(getattr(row, "values", row) for row in REFUSED)]
    assert {row[0] for row in rows} == set(SamplingParams.__struct_fields__)


def test_repetition_detection_has_limits() -> None:
    for values, says in (
        ({"max_pattern_size": 0, "min_count": 2}, f"must be in 1…{MAX_PATTERN_SIZE}"),
        ({"max_pattern_size": MAX_PATTERN_SIZE + 1, "min_count": 2}, "max_pattern_size=1025"),
        ({"max_pattern_size": 3, "min_count": 1}, f"min_count=1 must be in 2…{MAX_PATTERN_COUNT}"),
        ({"max_pattern_size": 3, "min_count": 2, "min_pattern_size": 4}, "max_pattern_size"),
    ):
        with pytest.raises(RequestError, match=says):
            RepetitionDetectionParams(**values)


def test_best_of_is_not_less_than_n() -> None:
    with pytest.raises(RequestError, match="best_of=2 is less than n=3"):
        SamplingParams(n=3, best_of=2)
    assert SamplingParams(n=3, best_of=3).num_sequences == 3
    assert SamplingParams(n=3).num_sequences == 3


def test_listed_ids_ask_for_log_probabilities() -> None:
    params = SamplingParams(logprob_token_ids=[1], prompt_logprob_token_ids=[2])
    assert (params.logprobs, params.prompt_logprobs) == (0, 0)
    params = SamplingParams(logprob_token_ids=[1], logprobs=3)
    assert params.logprobs == 3


def test_prompt_logprobs_do_not_read_the_cache() -> None:
    with pytest.raises(RequestError, match="skip_reading_prefix_cache=False cannot be had"):
        SamplingParams(prompt_logprobs=1, skip_reading_prefix_cache=False)


def test_a_trace_does_not_go_with_a_grammar() -> None:
    with pytest.raises(RequestError, match="does not go with structured_outputs") as caught:
        SamplingParams(
            structured_outputs=StructuredOutputsParams(regex="a+"), trace_decode_token_ids=[1]
        )
    assert caught.value.param == "trace_decode_token_ids"


def test_a_regex_needs_text() -> None:
    with pytest.raises(RequestError, match="stop_regex needs detokenize=True"):
        SamplingParams(stop_regex="x", detokenize=False)


def test_stop_strings_need_text() -> None:
    with pytest.raises(RequestError, match="detokenize=True"):
        SamplingParams(stop="x", detokenize=False)
    assert SamplingParams(stop=[], detokenize=False).stop_strings == []


def test_vocabulary() -> None:
    SamplingParams(stop_token_ids=[0, 9], logprobs=10).check_vocabulary(10)
    SamplingParams(logprobs=-1, prompt_logprobs=-1).check_vocabulary(10)
    SamplingParams(allowed_token_ids=[9, 0], logit_bias={9: 1}).check_vocabulary(10)
    for values in (
        *({"stop_token_ids": [wrong]} for wrong in (10, -1, 2**70)),
        {"allowed_token_ids": [3, 10]},
        {"logit_bias": {3: 1.0, "10": 1.0}},
        {"logprob_token_ids": [10]},
        {"prompt_logprob_token_ids": [3, 10]},
        {"trace_decode_token_ids": [10]},
    ):
        with pytest.raises(RequestError, match=r"the model's ids are 0…9") as caught:
            SamplingParams(**values).check_vocabulary(10)
        assert caught.value.param in values
    for name in ("logprobs", "prompt_logprobs"):
        with pytest.raises(RequestError, match=f"^{name}=11 .* use -1") as caught:
            SamplingParams(**{name: 11}).check_vocabulary(10)
        assert caught.value.param == name


def test_replace_checks_again() -> None:
    params = SamplingParams()
    params.temperature = NAN
    with pytest.raises(RequestError, match="temperature=nan"):
        msgspec.structs.replace(params)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.floats()), max_size=4),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.dictionaries(st.one_of(st.integers(), st.floats()), st.floats(), max_size=2),
)


@given(st.dictionaries(st.sampled_from(SamplingParams.__struct_fields__), ANYTHING, max_size=4))
def test_any_values_either_work_or_are_a_request_error(values: dict[str, Any]) -> None:
    """What is accepted can be encoded and comes back equal."""
    try:
        params = SamplingParams(**values)
    except RequestError as error:
        assert error.param in values
        return
    params.check_vocabulary(2**62) if params.stop_token_ids is None else None
    is_plain = all(-(2**63) <= i < 2**64 for i in params.stop_token_ids or ())
    if is_plain and "nan" not in str(params.extra_args):  # which no two are equal
        wire = msgspec.msgpack.encode(params)
        assert msgspec.msgpack.decode(wire, type=SamplingParams) == params
