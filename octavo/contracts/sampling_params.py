"""How the tokens of one request are chosen. Names and rules are vLLM's.

`SamplingParams` is what a user writes, what travels to the engine core and what the worker's
sampler reads. It is checked when it is made: a wrong value raises `RequestError`.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.contracts import sampling_checks
from octavo.contracts.checks import check_int
from octavo.contracts.sampling_limits import MAX_PATTERN_COUNT, MAX_PATTERN_SIZE
from octavo.contracts.structured_outputs import StructuredOutputsParams
from octavo.errors import RequestError, shown


class RequestOutputKind(enum.IntEnum):
    """What each `RequestOutput` carries: all so far, only what is new, or only the last one."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class RepetitionDetectionParams(
    msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """When an output counts as stuck: its end is one pattern of tokens, over and over.

    Attributes:
        max_pattern_size: longest pattern, in tokens, 1…1024.
        min_pattern_size: shortest one; 0 is 1.
        min_count: how often in a row it must come, 2…65536.

    Raises:
        RequestError: a value is out of range.
    """

    max_pattern_size: int
    min_count: int
    min_pattern_size: int = 0

    def __post_init__(self) -> None:
        check_int(
            "repetition_detection.max_pattern_size", self.max_pattern_size, 1, MAX_PATTERN_SIZE
        )
        check_int("repetition_detection.min_count", self.min_count, 2, MAX_PATTERN_COUNT)
        check_int(
            "repetition_detection.min_pattern_size",
            self.min_pattern_size,
            0,
            self.max_pattern_size,
            note="no more than max_pattern_size",
        )


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Sampling parameters of one request.

    Attributes:
        n: how many completions, 1…128. Each has its own random stream; the first is what n=1 gives.
        best_of: None, or n…128: generate so many completions and return the n with the highest
            cumulative log probability, the best first (ties: the earlier one). Not streamed.
        temperature: 0…2; 0 is greedy (ties go to the lowest id).
        top_p: nucleus, in (0, 1].
        top_k: keep the k most likely; 0 or -1 is off. More than the vocabulary is all of it.
        min_p: drop tokens below min_p × the most likely one's probability, in [0, 1].
        seed: 64-bit; None (or -1) lets the engine draw one at admission.
        stop: strings that end the text; needs `detokenize`. None, a string or a list.
        stop_regex: regular expressions (Python's syntax, without what needs to look around or back)
            that end the text at the first character that completes a match of one; the match is
            left out as a stop string is. None, a string or a list.
        stop_token_ids: ids that end the text.
        ignore_eos: go on after the model's end-of-sequence ids.
        max_tokens: most new tokens; None is as many as fit the model length.
        min_tokens: no end before so many tokens (end ids are masked until then).
        logprobs: None, or how many alternatives per token beside the sampled one; -1 is all.
        logprob_token_ids: ids whose log probability is given at every token too; at most 128.
        detokenize: False returns ids only.
        skip_special_tokens: leave special tokens out of the text.
        shown_special_token_ids: special tokens that stay in the text despite `skip_special_tokens`,
            as they mark something that is looked for in it; at most 1024.
        spaces_between_special_tokens: taken, and changes nothing: special tokens are written as
            they are, and there are no spaces between them that the model did not write.
        include_stop_str_in_output: keep the stop string (or stop token's text) at the end.
        output_kind: see `RequestOutputKind`.
        stream_interval: outputs between the first and the last one bring at least so many tokens.
        report_progress: before the first token, outputs tell how many requests wait before this one
            and how much of the prompt is computed (`RequestOutput.progress`).
        flat_logprobs: give log probabilities as one `FlatLogprobs`, which takes a tenth of the
            memory, and not as a list of dicts.
        presence_penalty: -2…2, taken from the logits of all tokens that are in the output.
        frequency_penalty: -2…2, the same, times the number of their occurrences.
        repetition_penalty: above 0; divides positive logits of the tokens in prompt and output, and
            multiplies negative ones (Keskar et al., *CTRL*, 2019).
        prompt_logprobs: None, or how many alternatives per token of the prompt beside the token
            itself; -1 is all. Such a request computes all of its prompt itself.
        prompt_logprob_token_ids: ids whose log probability is given at every token of the prompt.
        prompt_logprob_start: first token of the prompt that has any.
        skip_reading_prefix_cache: compute all of the prompt, whatever is cached. None: only where
            prompt_logprobs ask for it.
        logit_bias: token id → number added to its logit, cut to -100…100. Ids may be strings, as in
            JSON ("5", but not "05").
        allowed_token_ids: only these may be sampled.
        bad_words: what may not be generated, at the beginning of a word or after a space: the last
            token of each is masked where the output ends with those before it.
        thinking_token_budget: most tokens between the model's marks of the beginning and the end of
            its reasoning; then the end mark is forced. None or -1 is no end.
        repetition_detection: end, with reason "repetition", once the output repeats itself; see
            `RepetitionDetectionParams` (or a dict of its fields).
        max_time_ms: end after so many milliseconds since arrival, with what there is and reason
            "timeout".
        ttft_deadline_ms: the same, if there is no token yet.
        trace_decode_token_ids: the first tokens of the output, whatever the model would say: a
            recorded answer is gone through again, with the model's log probabilities.
        logits_processors: callables (output_ids, logits) or (prompt_ids, output_ids, logits); only
            where the engine runs in the caller's process. logits is a numpy row [vocab] float32 to
            be changed in place, unless another one is returned.
        extra_args: plain values for the logits processors that the engine was started with.
        structured_outputs: what the output must be: JSON, a regular expression, … (docs/
            structured-outputs.md). With `ignore_eos` it goes on while the grammar allows more.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: list[str] | str | None = None
    stop_regex: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    shown_special_token_ids: list[int] | None = None
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int = 1
    report_progress: bool = False
    flat_logprobs: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: list[int] | None = None
    prompt_logprob_start: int = 0
    skip_reading_prefix_cache: bool | None = None
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    max_time_ms: int | None = None
    ttft_deadline_ms: int | None = None
    trace_decode_token_ids: list[int] | None = None
    logits_processors: Any = None  # list[Callable] | None; callables do not travel
    extra_args: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.repetition_detection, Mapping):
            self.repetition_detection = _repetition_detection(self.repetition_detection)
        sampling_checks.normalise(self)
        for name, kind in (
            ("output_kind", RequestOutputKind),
            ("repetition_detection", RepetitionDetectionParams),
            ("structured_outputs", StructuredOutputsParams),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind) and (value is not None or name == "output_kind"):
                raise RequestError(f"{name}={shown(value)} must be a {kind.__name__}", param=name)
        sampling_checks.check(self)

    # ---------------------------------------------------------------- reading

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list (after checking it always is one)."""
        assert self.stop is None or isinstance(self.stop, list)
        return self.stop or []

    @property
    def stop_regexes(self) -> list[str]:
        """`stop_regex` as a list (after checking it always is one)."""
        assert self.stop_regex is None or isinstance(self.stop_regex, list)
        return self.stop_regex or []

    @property
    def num_sequences(self) -> int:
        """Completions that are generated; the n best of them are returned."""
        return self.n if self.best_of is None else self.best_of

    def clone(self) -> SamplingParams:
        """A copy that shares no list or dict with this one (logits processors are the same)."""
        shared = {id(processor): processor for processor in self.logits_processors or ()}
        return copy.deepcopy(self, shared)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check the ids in this struct against a model. Raises RequestError."""
        sampling_checks.check_vocabulary(self, vocab_size)


_DETECTION_FIELDS = frozenset(RepetitionDetectionParams.__struct_fields__)


def _repetition_detection(values: Mapping[str, Any]) -> RepetitionDetectionParams | None:
    """From a dict; a max_pattern_size of 0 turns it off, as in vLLM."""
    if set(values) <= _DETECTION_FIELDS and values.get("max_pattern_size", 0) == 0:
        return None
    try:
        return msgspec.convert(values, RepetitionDetectionParams)
    except msgspec.ValidationError as error:
        raise RequestError(
            f"repetition_detection={shown(values)}: {error}", param="repetition_detection"
        ) from None
