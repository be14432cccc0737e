"""How the tokens of one request are chosen. Names and rules are vLLM's.

`SamplingParams` is what a user writes, what travels to the engine core and what the worker's
sampler reads. It is checked when it is made: a wrong value raises `RequestError`, and a field
whose stage does not exist yet is refused by name, never ignored.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

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
from octavo.contracts.structured_outputs import StructuredOutputsParams
from octavo.errors import RequestError, shown

MAX_N = 128
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_LENGTH = 4096
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGPROBS = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORDS_TOKENS = 1024
MAX_BAD_WORD_LENGTH = 4096
MAX_PENALTY = 3.4e38
SEED_MIN, SEED_MAX = -(2**63), 2**64 - 1

# Fields that exist in vLLM and whose stage Octavo does not have yet, with their neutral values.
_NOT_YET: dict[str, tuple[Any, ...]] = {
    "logprob_token_ids": (None,),
    "thinking_token_budget": (None,),
    "repetition_detection": (None,),
    "extra_args": (None,),
}
_INTS = ("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs")
_FLOATS = (
    *("temperature", "top_p", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)


class RequestOutputKind(enum.IntEnum):
    """What each `RequestOutput` carries: all so far, only what is new, or only the last one."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Sampling parameters of one request.

    Attributes:
        n: how many completions, 1…128. Each has its own random stream; the first is what n=1 gives.
        temperature: 0…2; 0 is greedy (ties go to the lowest id).
        top_p: nucleus, in (0, 1].
        top_k: keep the k most likely; 0 or -1 is off. More than the vocabulary is all of it.
        min_p: drop tokens below min_p × the most likely one's probability, in [0, 1].
        seed: 64-bit; None (or -1) lets the engine draw one at admission.
        stop: strings that end the text; needs `detokenize`. None, a string or a list.
        stop_token_ids: ids that end the text.
        ignore_eos: go on after the model's end-of-sequence ids.
        max_tokens: most new tokens; None is as many as fit the model length.
        min_tokens: no end before so many tokens (end ids are masked until then).
        logprobs: None, or how many alternatives per token beside the sampled one; -1 is all.
        detokenize: False returns ids only.
        skip_special_tokens: leave special tokens out of the text.
        spaces_between_special_tokens: accepted as True only (kept for vLLM's callers).
        include_stop_str_in_output: keep the stop string (or stop token's text) at the end.
        output_kind: see `RequestOutputKind`.
        presence_penalty: -2…2, taken from the logits of all tokens that are in the output.
        frequency_penalty: -2…2, the same, times the number of their occurrences.
        repetition_penalty: above 0; divides positive logits of the tokens in prompt and output, and
            multiplies negative ones (Keskar et al., *CTRL*, 2019).
        prompt_logprobs: None, or how many alternatives per token of the prompt beside the token
            itself; -1 is all. Such a request computes all of its prompt itself.
        logit_bias: token id → number added to its logit, cut to -100…100. Ids may be strings.
        allowed_token_ids: only these may be sampled.
        bad_words: what may not be generated, at the beginning of a word or after a space: the last
            token of each is masked where the output ends with those before it.
        structured_outputs: what the output must be: JSON, a regular expression, … (docs/
            structured-outputs.md). With `ignore_eos` it goes on while the grammar allows more.

    The remaining fields are vLLM's and refused unless neutral (see the README's table).
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Any = None
    extra_args: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, neutral in _NOT_YET.items():
            value = getattr(self, name)
            if not any(type(value) is type(x) and value == x for x in neutral) and not (
                isinstance(value, (int, float)) and value in neutral
            ):
                raise RequestError(
                    f"{name}={shown(value)} is not supported yet; leave it out", param=name
                )
        self._normalise()
        self._check()

    # ---------------------------------------------------------------- reading

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list (after checking it always is one)."""
        assert self.stop is None or isinstance(self.stop, list)
        return self.stop or []

    # ---------------------------------------------------------------- checking

    def _normalise(self) -> None:
        """Plain Python numbers and lists of our own; the neutral spellings made one."""
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        elif isinstance(self.stop, (list, tuple)):
            self.stop = list(self.stop)
        if isinstance(self.stop_token_ids, (list, tuple, set, frozenset)):
            self.stop_token_ids = [plain_int(i) for i in self.stop_token_ids]
        for name in _INTS:
            setattr(self, name, plain_int(getattr(self, name)))
        for name in _FLOATS:
            setattr(self, name, plain_float(getattr(self, name)))
        if isinstance(self.logit_bias, Mapping):
            self.logit_bias = plain_bias(self.logit_bias)
        if isinstance(self.allowed_token_ids, (list, tuple, set, frozenset)):
            self.allowed_token_ids = distinct_ids(self.allowed_token_ids)
        if isinstance(self.bad_words, (list, tuple)):
            self.bad_words = list(self.bad_words)
        if type(self.seed) is int and self.seed == -1:
            self.seed = None
        if type(self.top_k) is int and self.top_k == -1:
            self.top_k = 0

    def _check(self) -> None:
        check_int("n", self.n, 1, MAX_N)
        check_float("temperature", self.temperature, 0.0, 2.0)
        check_float("top_p", self.top_p, 0.0, 1.0, low_open=True)
        check_float("min_p", self.min_p, 0.0, 1.0)
        check_int("top_k", self.top_k, 0, 2**31 - 1, note="0 or -1 turns it off")
        if self.seed is not None:
            check_int("seed", self.seed, SEED_MIN, SEED_MAX)
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        check_int("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}",
                param="min_tokens",
            )
        for name in ("logprobs", "prompt_logprobs"):
            if (k := getattr(self, name)) is not None:
                check_int(name, k, -1, MAX_LOGPROBS, note="-1 is all")
        check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_float("repetition_penalty", self.repetition_penalty, 0.0, MAX_PENALTY, low_open=True)
        for name in (
            "ignore_eos",
            "detokenize",
            "skip_special_tokens",
            "include_stop_str_in_output",
        ):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(
                    f"{name}={shown(getattr(self, name))} must be true or false", param=name
                )
        if self.spaces_between_special_tokens is not True:
            raise RequestError(
                "spaces_between_special_tokens=False is not supported; leave it out",
                param="spaces_between_special_tokens",
            )
        if not isinstance(self.output_kind, RequestOutputKind):
            raise RequestError(
                f"output_kind={shown(self.output_kind)} must be a RequestOutputKind",
                param="output_kind",
            )
        structured = self.structured_outputs
        if structured is not None and not isinstance(structured, StructuredOutputsParams):
            raise RequestError(
                f"structured_outputs={shown(structured)} must be StructuredOutputsParams",
                param="structured_outputs",
            )
        self._check_stop()
        self._check_logit_bias()
        self._check_allowed_token_ids()
        self._check_bad_words()

    def _check_stop(self) -> None:
        stop = self.stop
        if stop is not None:
            if not isinstance(stop, list) or not all(isinstance(s, str) for s in stop):
                raise RequestError(
                    f"stop={shown(stop)} must be a string or a list of strings", param="stop"
                )
            if len(stop) > MAX_STOP_STRINGS:
                raise RequestError(
                    f"stop has {len(stop)} strings; at most {MAX_STOP_STRINGS}", param="stop"
                )
            if any(not s for s in stop):
                raise RequestError("stop holds an empty string; leave it out", param="stop")
            if any(len(s) > MAX_STOP_STRING_LENGTH for s in stop):
                raise RequestError(
                    f"a stop string is longer than {MAX_STOP_STRING_LENGTH} characters",
                    param="stop",
                )
            if any("\ud800" <= char <= "\udfff" for s in stop for char in s):
                raise RequestError(
                    f"stop={shown(stop)} holds half a surrogate pair, which no text has",
                    param="stop",
                )
            if stop and not self.detokenize:
                raise RequestError("stop strings need detokenize=True", param="stop")
        ids = self.stop_token_ids
        if ids is not None:
            if not isinstance(ids, list) or not all(type(i) is int for i in ids):
                raise RequestError(
                    f"stop_token_ids={shown(ids)} must be a list of token ids",
                    param="stop_token_ids",
                )
            if len(ids) > MAX_STOP_TOKEN_IDS:
                raise RequestError(
                    f"stop_token_ids has {len(ids)} ids; at most {MAX_STOP_TOKEN_IDS}",
                    param="stop_token_ids",
                )

    def _check_logit_bias(self) -> None:
        bias = self.logit_bias
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
                    f"logit_bias gives token {token_id} the bias {shown(value)}; it must be a "
                    "number",
                    param="logit_bias",
                )

    def _check_allowed_token_ids(self) -> None:
        ids = self.allowed_token_ids
        if ids is None:
            return
        if not isinstance(ids, list) or not ids:
            raise RequestError(
                f"allowed_token_ids={shown(ids)} must be a list of at least one token id",
                param="allowed_token_ids",
            )
        check_token_ids("allowed_token_ids", ids)

    def _check_bad_words(self) -> None:
        words = self.bad_words
        if words is None:
            return
        if not isinstance(words, list) or not all(isinstance(w, str) for w in words):
            raise RequestError(
                f"bad_words={shown(words)} must be a list of strings", param="bad_words"
            )
        if len(words) > MAX_BAD_WORDS:
            raise RequestError(
                f"bad_words has {len(words)} words; at most {MAX_BAD_WORDS}", param="bad_words"
            )
        if any(not w for w in words):
            raise RequestError("bad_words holds an empty string; leave it out", param="bad_words")
        if any(len(w) > MAX_BAD_WORD_LENGTH for w in words):
            raise RequestError(
                f"a word of bad_words is longer than {MAX_BAD_WORD_LENGTH} characters",
                param="bad_words",
            )
        if any("\ud800" <= char <= "\udfff" for w in words for char in w):
            raise RequestError(
                f"bad_words={shown(words)} holds half a surrogate pair, which no text has",
                param="bad_words",
            )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check the ids in this struct against a model. Raises RequestError."""
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            ids = getattr(self, name)
            if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
                wrong = next(i for i in ids if not 0 <= i < vocab_size)
                raise RequestError(
                    f"{name} holds {shown(wrong)}; the model's ids are 0…{vocab_size - 1}",
                    param=name,
                )
        for name in ("logprobs", "prompt_logprobs"):
            k = getattr(self, name)
            if k is not None and k > vocab_size:
                raise RequestError(
                    f"{name}={k} is more than the vocabulary of {vocab_size}; use -1", param=name
                )
