"""SamplingParams: every field's meaning, limits and error, as a table."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.sampling_params import (
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_STRING_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    SEED_MAX,
    SEED_MIN,
    RequestOutputKind,
    SamplingParams,
)
from octavo.errors import RequestError

NAN, INF = math.nan, math.inf


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


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
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
        ("logit_bias", {"5": -1.5, "007": 2}, {5: -1.5, 7: 2.0}),
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
        # Neutral values of what is not there yet.
        ("logprob_token_ids", None, None),
    ],
)
def test_accepted(field: str, given: Any, kept: Any) -> None:
    value = getattr(SamplingParams(**{field: given}), field)
    assert value == kept
    assert type(value) is type(kept)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
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
        ("spaces_between_special_tokens", False, "not supported"),
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
        ("logprob_token_ids", [], "logprob_token_ids=[] is not supported yet"),
        ("structured_outputs", {}, "must be StructuredOutputsParams"),
        ("thinking_token_budget", 1, "not supported yet"),
        ("repetition_detection", object(), "not supported yet"),
        ("extra_args", {"x": 1}, "not supported yet"),
    ],
)
def test_refused(field: str, value: Any, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert says in str(caught.value)
    assert caught.value.param == field
    assert len(str(caught.value)) < 300


def test_every_field_is_in_a_table_above() -> None:
    tables = (test_accepted, test_refused)
    rows = [row for t in tables for mark in t.pytestmark for row in mark.args[1]]  # type: ignore[attr-defined]
    covered = {getattr(row, "values", row)[0] for row in rows}
    assert set(SamplingParams.__struct_fields__) - covered == set()


def test_stop_strings_need_text() -> None:
    with pytest.raises(RequestError, match="detokenize=True"):
        SamplingParams(stop="x", detokenize=False)
    assert SamplingParams(stop=[], detokenize=False).stop_strings == []


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
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)  # type: ignore[call-arg]


def test_is_greedy() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert not SamplingParams(temperature=1e-38).is_greedy


def test_vocabulary() -> None:
    SamplingParams(stop_token_ids=[0, 9], logprobs=10).check_vocabulary(10)
    SamplingParams(logprobs=-1, prompt_logprobs=-1).check_vocabulary(10)
    SamplingParams(allowed_token_ids=[9, 0], logit_bias={9: 1}).check_vocabulary(10)
    for values in (
        *({"stop_token_ids": [wrong]} for wrong in (10, -1, 2**70)),
        {"allowed_token_ids": [3, 10]},
        {"logit_bias": {3: 1.0, "10": 1.0}},
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
    if all(-(2**63) <= i < 2**64 for i in params.stop_token_ids or ()):
        wire = msgspec.msgpack.encode(params)
        assert msgspec.msgpack.decode(wire, type=SamplingParams) == params
