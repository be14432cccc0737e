"""Beam search over the engine: which requests make a step, and what comes of their answers.

A beam is a request for one token, whose log probabilities are what is wanted. The next step's beams
name the request that they go on from (`EngineRequest.fork_of`), so that they share its full blocks,
copy the one that is partly filled, and compute one token each. Their prompts are longer by a token
every time; nothing of the engine knows that they belong together.

Candidates, scores and the end of the search are those of transformers' `generate(num_beams=…)`.
Equal scores go to the earlier beam, then to the lower id.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.contracts.beam_search_params import BeamSearchParams
from octavo.contracts.messages import CompletionOutput, Logprob, RequestOutput, ServiceClass
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.sampling_limits import MAX_LOGPROB_VALUES, MAX_LOGPROBS
from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.engine.input_processor import (
    CheckedRequest,
    InputProcessor,
    ProcessedRequest,
    PromptType,
)
from octavo.errors import RequestError

if TYPE_CHECKING:
    from octavo.engine.tokenizer import Tokenizer

_BEAM_SUFFIX = re.compile(r"-beam-\d+-\d+\Z")  # of `BeamSearch._request_id`


@dataclass(slots=True, kw_only=True)
class BeamSearchSequence:
    """One sequence that a beam search found.

    Attributes:
        tokens: prompt and output.
        logprobs: per token of the output {token id: Logprob}, those that were candidates.
        cum_logprob: sum over the output.
        score: cum_logprob / (tokens of the output) ** length_penalty.
        text: of `tokens`.
        finish_reason: "stop" or "length".
    """

    tokens: list[int]
    logprobs: list[dict[int, Logprob]]
    cum_logprob: float
    score: float
    text: str
    finish_reason: str


@dataclass(slots=True, kw_only=True)
class BeamSearchOutput:
    """The answer to one prompt.

    Attributes:
        sequences: up to beam_width, the best first.
        error: why the search ended before it was done; None if it was done.
    """

    sequences: list[BeamSearchSequence]
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beam:
    """A beginning of an output.

    Attributes:
        source: id of the engine request that its last token came from; None for the prompt alone.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cum_logprob: float = 0.0
    source: str | None = None


@dataclass(frozen=True, slots=True)
class _Hypothesis:
    """A beam that has ended."""

    score: float
    beam: _Beam
    finish_reason: str


class BeamSearch:
    """One search: `next_requests`, run them, `take` their outputs, until `done`.

    Args:
        template: the prompt, processed (`begin_beam_search`).

    Attributes:
        done: whether the search is over.
        error: the failure that ended it.
    """

    def __init__(
        self, template: ProcessedRequest, params: BeamSearchParams, vocab_size: int
    ) -> None:
        engine_request = template.engine_requests[0]
        self._template = template
        self._params = params
        self._max_tokens = _max_tokens(template)
        self._end_ids = _end_ids(params, engine_request.eos_token_ids)
        self._num_candidates = _num_candidates(params, self._end_ids)
        self._num_logprobs = min(self._num_candidates, vocab_size)
        self._beams = [_Beam()]
        self._ended: list[_Hypothesis] = []
        self._num_steps = 0
        self.done = False
        self.error: str | None = None

    def next_requests(self) -> list[ProcessedRequest]:
        """A request per beam."""
        template = self._template
        params = msgspec.structs.replace(
            template.params,
            max_tokens=1,
            logprobs=self._num_logprobs,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        requests = []
        for index, beam in enumerate(self._beams):
            request_id = self._request_id(index)
            token_ids = template.prompt_token_ids + beam.token_ids
            engine_request = msgspec.structs.replace(
                template.engine_requests[0],
                request_id=request_id,
                prompt_token_ids=token_ids,
                sampling_params=params,
                fork_of=beam.source,
                leaves_fork_source=True,
            )
            requests.append(
                ProcessedRequest(
                    request_id=request_id,
                    prompt=None,
                    prompt_token_ids=token_ids,
                    params=params,
                    engine_requests=[engine_request],
                )
            )
        return requests

    def take(self, outputs: Sequence[RequestOutput]) -> None:
        """The last outputs of `next_requests`, in their order."""
        for output in outputs:
            completion = output.outputs[0]
            if completion.finish_reason in ("error", "abort"):
                self.error = completion.error or "it was aborted"
                self.done = True
                return
        self._advance([output.outputs[0].logprobs or [{}] for output in outputs])
        self._num_steps += 1

    def output(self, tokenizer: Tokenizer) -> BeamSearchOutput:
        """What was found."""
        prompt = self._template.prompt_token_ids
        sequences = [
            BeamSearchSequence(
                tokens=prompt + hypothesis.beam.token_ids,
                logprobs=hypothesis.beam.logprobs,
                cum_logprob=hypothesis.beam.cum_logprob,
                score=hypothesis.score,
                text=tokenizer.decode(prompt + self._shown(hypothesis)),
                finish_reason=hypothesis.finish_reason,
            )
            for hypothesis in self._ended
        ]
        return BeamSearchOutput(sequences=sequences, error=self.error)

    def request_output(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True
    ) -> RequestOutput:
        """What was found, as completions of one request."""
        outputs = [
            CompletionOutput(
                index=index,
                text=tokenizer.decode(
                    self._shown(hypothesis), skip_special_tokens=skip_special_tokens
                ),
                token_ids=hypothesis.beam.token_ids,
                cumulative_logprob=hypothesis.beam.cum_logprob,
                logprobs=hypothesis.beam.logprobs,
                finish_reason=hypothesis.finish_reason,
            )
            for index, hypothesis in enumerate(self._ended)
        ]
        if self.error is not None:
            failed = CompletionOutput(
                index=0, text="", token_ids=[], finish_reason="error", error=self.error
            )
            outputs = [failed]
        return RequestOutput(
            request_id=self._template.request_id,
            prompt=self._template.prompt,
            prompt_token_ids=self._template.prompt_token_ids,
            outputs=outputs,
            finished=True,
        )

    # ---------------------------------------------------------------- a step

    def _request_id(self, index: int) -> str:
        return f"{self._template.request_id}-beam-{self._num_steps}-{index}"

    def _advance(self, logprobs: Sequence[list[dict[int, Logprob]]]) -> None:
        """From every beam's log probabilities of the next token to the next beams."""
        candidates = sorted(
            (-(beam.cum_logprob + entry.logprob), index, token_id)
            for index, (beam, (position,)) in enumerate(zip(self._beams, logprobs))
            for token_id, entry in position.items()
            if entry.logprob > -float("inf")
        )
        going_on: list[_Beam] = []
        num_tokens = len(self._beams[0].token_ids) + 1
        for place, (_, index, token_id) in enumerate(candidates[: self._num_candidates]):
            beam = self._longer(index, token_id, logprobs[index][0])
            ends = token_id in self._end_ids
            if not ends and num_tokens < self._max_tokens:
                going_on.append(beam)
            elif (
                place < self._params.beam_width
            ):  # those behind are no better than beams that go on
                score = beam.cum_logprob / num_tokens**self._params.length_penalty
                self._ended.append(_Hypothesis(score, beam, "stop" if ends else "length"))
        self._ended.sort(key=lambda hypothesis: -hypothesis.score)
        del self._ended[self._params.beam_width :]
        self._beams = going_on[: self._params.beam_width]
        self.done = not self._beams or self._cannot_improve(num_tokens)

    def _longer(self, index: int, token_id: int, position: dict[int, Logprob]) -> _Beam:
        beam = self._beams[index]
        return _Beam(
            token_ids=[*beam.token_ids, token_id],
            logprobs=[*beam.logprobs, position],
            cum_logprob=beam.cum_logprob + position[token_id].logprob,
            source=self._request_id(index),
        )

    def _cannot_improve(self, num_tokens: int) -> bool:
        """Whether no beam is expected to get among those that have ended."""
        if len(self._ended) < self._params.beam_width:
            return False
        how = self._params.early_stopping
        if how is True:
            return True
        penalty = self._params.length_penalty
        length = self._max_tokens if how == "never" and penalty > 0 else num_tokens
        return self._beams[0].cum_logprob / length**penalty <= self._ended[-1].score

    def _shown(self, hypothesis: _Hypothesis) -> list[int]:
        """The output's ids that have a text."""
        token_ids = hypothesis.beam.token_ids
        if hypothesis.finish_reason == "stop" and not self._params.include_stop_str_in_output:
            return token_ids[:-1]
        return token_ids


async def run_search(
    search: BeamSearch, last_of: Callable[[ProcessedRequest], Awaitable[RequestOutput]]
) -> None:
    """Run a search to its end. Cancelling it cancels the requests that run.

    Args:
        last_of: runs a request, and gives its last output.
    """
    while not search.done:
        tasks = [asyncio.ensure_future(last_of(r)) for r in search.next_requests()]
        try:
            search.take(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def search_id_of(request_id: str) -> str:
    """The id of the search that an engine request belongs to; an id of no search stays."""
    return _BEAM_SUFFIX.sub("", request_id)


@dataclass(frozen=True, kw_only=True)
class CheckedBeamSearch:
    """A beam search in which nothing is wrong, before it has an id.

    Attributes:
        template: what its beams have in common.
    """

    template: CheckedRequest
    params: BeamSearchParams

    @property
    def prompt_token_ids(self) -> list[int]:
        """Of the prompt."""
        return self.template.prompt_token_ids

    @property
    def max_tokens(self) -> int:
        """Most tokens of an output."""
        return _max_tokens(self.template)


def check_requests(
    processor: InputProcessor,
    prompts: Sequence[PromptType],
    params: Sequence[SamplingParams | BeamSearchParams | PoolingParams],
    *,
    priority: int = 0,
    cache_salt: str | None = None,
) -> list[CheckedRequest | CheckedBeamSearch]:
    """`InputProcessor.check`, or of beam searches `check_beam_search`. Arguments and errors are
    those of the former."""
    options: Any = {"priority": priority, "cache_salt": cache_salt}
    others = [of_prompt for of_prompt in params if not isinstance(of_prompt, BeamSearchParams)]
    if others:
        return [*processor.check(prompts, others, **options)]
    return [
        check_beam_search(processor, prompt, of_prompt, **options)
        for prompt, of_prompt in zip(prompts, params)
        if isinstance(of_prompt, BeamSearchParams)
    ]


def check_beam_search(
    processor: InputProcessor,
    prompt: PromptType,
    params: BeamSearchParams,
    *,
    priority: int = 0,
    cache_salt: str | None = None,
) -> CheckedBeamSearch:
    """Check a prompt and parameters (`InputProcessor.check`).

    Raises:
        RequestError: what is wrong with them.
    """
    if not isinstance(params, BeamSearchParams):
        raise RequestError(
            f"params must be BeamSearchParams, not {type(params).__name__}", param="params"
        )
    if not processor.config.logprobs_mode.endswith("logprobs"):
        raise RequestError(
            f"a beam search needs log probabilities, not logprobs_mode="
            f"{processor.config.logprobs_mode!r}; start the engine with another one"
        )
    params = msgspec.structs.replace(params)  # checks it anew: fields can be set
    of_beams = SamplingParams(
        temperature=0.0, seed=0, max_tokens=params.max_tokens, detokenize=False
    )
    (template,) = processor.check([prompt], [of_beams], priority=priority, cache_salt=cache_salt)
    num_candidates = _num_candidates(params, _end_ids(params, processor.eos_token_ids))
    if num_candidates > MAX_LOGPROBS:
        raise RequestError(
            f"beam_width={params.beam_width} needs {num_candidates} candidates a step for a "
            f"model with so many end ids; at most {MAX_LOGPROBS}: use fewer beams",
            param="beam_width",
        )
    max_tokens = _max_tokens(template)
    num_logprobs = num_candidates * params.beam_width * max_tokens
    if num_logprobs > MAX_LOGPROB_VALUES:
        raise RequestError(
            f"beam_width={params.beam_width} and max_tokens={max_tokens} are up to "
            f"{num_logprobs} log probabilities; at most {MAX_LOGPROB_VALUES}: lower one of them",
            param="max_tokens",
        )
    return CheckedBeamSearch(template=template, params=params)


def begin_beam_search(
    processor: InputProcessor,
    request_id: str,
    search: CheckedBeamSearch,
    *,
    service_class: ServiceClass = ServiceClass.INTERACTIVE,
) -> BeamSearch:
    """Give a search an id. Raises RequestError, as `InputProcessor.begin`."""
    template = processor.begin(request_id, search.template, service_class=service_class)
    return BeamSearch(template, search.params, processor.vocab_size)


def _end_ids(params: BeamSearchParams, eos_token_ids: Sequence[int]) -> frozenset[int]:
    return frozenset(() if params.ignore_eos else eos_token_ids)


def _num_candidates(params: BeamSearchParams, end_ids: frozenset[int]) -> int:
    """Per step: enough that beam_width are left that do not end."""
    return max(2, 1 + len(end_ids)) * params.beam_width


def _max_tokens(template: CheckedRequest | ProcessedRequest) -> int:
    assert isinstance(template.params, SamplingParams)
    assert template.params.max_tokens is not None, "checking it has set it"
    return template.params.max_tokens
