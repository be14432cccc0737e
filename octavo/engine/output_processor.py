"""Engine outputs to the user's `RequestOutput`s: text, stop strings, logprobs, n completions.

The core knows ids and lengths only. Stop strings live here; when one ends a completion, the core
is told to abort the rest of it, and tokens that were already on their way are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.contracts.answer_events import Event, joined
from octavo.contracts.logprobs import FlatLogprobs
from octavo.contracts.messages import (
    CompletionOutput,
    EngineOutput,
    FinishReason,
    Logprob,
    LogprobRows,
    PromptProgress,
    RequestOutput,
)
from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.engine.detokenizer import Piece, make_detokenizer
from octavo.engine.input_processor import ProcessedRequest
from octavo.engine.parsers.parser import OutputParser
from octavo.errors import DuplicateIdError
from octavo.log import get_logger

if TYPE_CHECKING:
    import numpy as np

    from octavo.engine.tokenizer import Tokenizer


logger = get_logger(__name__)

ParserOf = Callable[[], OutputParser]
"""Makes the parser of one completion."""


class ProcessedOutputs(msgspec.Struct, frozen=True):
    """What one step means to the users, and what the core must hear.

    Attributes:
        request_outputs: at most one per request.
        to_abort: ids of engine requests that ended on this side, and the core does not know, with
            the reason: a stop string, a failure, an abort.
    """

    request_outputs: list[RequestOutput] = []
    to_abort: dict[str, FinishReason] = {}


class OutputProcessor:
    """The state of every unfinished request, on the front end's side."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._requests: dict[str, _Request] = {}
        self._completions: dict[str, _Completion] = {}  # by id of the engine request

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    @property
    def num_unfinished(self) -> int:
        """Requests that have not had their last output."""
        return len(self._requests)

    @property
    def unfinished_ids(self) -> list[str]:
        """Their ids, in order of arrival."""
        return list(self._requests)

    def add_request(self, request: ProcessedRequest, parser_of: ParserOf | None = None) -> None:
        """Expect outputs for `request`, and take its completions apart with a parser each.

        Raises:
            DuplicateIdError: one of its ids is in use.
        """
        engine_ids = [r.request_id for r in request.engine_requests]
        if request.request_id in self._requests or any(i in self._completions for i in engine_ids):
            raise DuplicateIdError(
                f"request_id={request.request_id!r} is in use; wait for its end or choose another",
                param="request_id",
            )
        state = _Request(request, self._tokenizer, parser_of)
        self._requests[request.request_id] = state
        self._completions.update(zip(engine_ids, state.completions))

    def process_outputs(self, outputs: Iterable[EngineOutput]) -> ProcessedOutputs:
        """Take the outputs of a step. Outputs of unknown (ended, aborted) requests are dropped."""
        result = ProcessedOutputs()
        touched: dict[str, _Request] = {}
        for output in outputs:
            completion = self._completions.get(output.request_id)
            if completion is None:
                continue
            try:
                completion.take(output)
            except Exception as error:  # of this completion: the others go on
                logger.exception("the output of request %s failed", output.request_id)
                completion.fail(f"its output could not be processed: {type(error).__name__}")
            if completion.finish_reason is not None:
                if output.finish_reason is None:
                    result.to_abort[output.request_id] = completion.finish_reason
                del self._completions[output.request_id]
                completion.request.num_unfinished -= 1
            if not completion.request.is_silent:
                touched[completion.request.request_id] = completion.request
        for request_id, request in touched.items():
            made = request.make_output()
            if made is not None:
                result.request_outputs.append(made)
            if request.finished:
                del self._requests[request_id]
        return result

    def abort_requests(self, request_ids: Iterable[str]) -> ProcessedOutputs:
        """End requests from this side: their last outputs, and what the core must abort. Unknown
        ids are passed over: the request may have ended in the meantime."""
        result = ProcessedOutputs()
        for request_id in request_ids:
            request = self._requests.pop(request_id, None)
            if request is None:
                continue
            for completion in request.completions:
                if not completion.finished:
                    completion.abort()
                    request.num_unfinished -= 1
                    del self._completions[completion.engine_id]
                    result.to_abort[completion.engine_id] = FinishReason.ABORT
            made = request.make_output()
            if made is not None:
                result.request_outputs.append(made)
        return result


def _no_logprobs(params: SamplingParams) -> Any:
    """An empty list of log probabilities by position, or what reads as one."""
    return FlatLogprobs() if params.flat_logprobs else []


def _best(outputs: list[CompletionOutput], count: int) -> list[CompletionOutput]:
    """The completions with the highest cumulative log probability, the best first, those that
    failed last; ties by index."""

    def place(output: CompletionOutput) -> tuple[bool, float]:
        return output.finish_reason == "error", -(output.cumulative_logprob or 0.0)

    best = sorted(outputs, key=place)[:count]
    for index, output in enumerate(best):
        output.index = index
    return best


class _Request:
    """One request of the user: its n completions and how they are reported."""

    def __init__(
        self, request: ProcessedRequest, tokenizer: Tokenizer, parser_of: ParserOf | None
    ) -> None:
        self.request_id = request.request_id
        self.prompt = request.prompt
        self.prompt_token_ids = request.prompt_token_ids
        is_ranked = request.params.best_of is not None
        self.kind = RequestOutputKind.FINAL_ONLY if is_ranked else request.params.output_kind
        self._interval = request.params.stream_interval
        self._num_best = request.params.n if is_ranked else None
        self.num_cached_tokens = 0
        self.pooled: np.ndarray | None = None
        self.progress: PromptProgress | None = None  # that is not reported yet
        # Of the first token, that nothing comes before, there is none.
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        if request.params.prompt_logprobs is not None:
            num_without = max(1, request.params.prompt_logprob_start)
            self.prompt_logprobs = _no_logprobs(request.params)
            self.prompt_logprobs += [None] * min(num_without, len(self.prompt_token_ids))
        self.completions = [
            _Completion(
                self,
                index,
                r.request_id,
                request.params,
                tokenizer,
                None if parser_of is None else parser_of(),
            )
            for index, r in enumerate(request.engine_requests)
        ]
        self.num_unfinished = len(self.completions)

    @property
    def finished(self) -> bool:
        return self.num_unfinished == 0

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing to tell before its end, which has not come."""
        return self.kind is RequestOutputKind.FINAL_ONLY and self.num_unfinished > 0

    @property
    def is_prompt_reported(self) -> bool:
        """Whether the prompt's log probabilities, if asked for, are all there."""
        return self.prompt_logprobs is None or (
            len(self.prompt_logprobs) == len(self.prompt_token_ids)
        )

    def make_output(self) -> RequestOutput | None:
        """What the user of a request that is not silent is due now, by `output_kind`: DELTA has
        only completions with news, the others have all. Nothing is told before the prompt's log
        probabilities are complete, nor between the first output of a completion and its last with
        fewer than `stream_interval` tokens. News of progress come by themselves."""
        progress, self.progress = self.progress, None
        finished = self.finished
        complete = self.is_prompt_reported
        is_due = any(c.is_due(self._interval) for c in self.completions)
        if not is_due or not (finished or complete):
            return None if progress is None else self._progress_output(progress)
        delta = self.kind is RequestOutputKind.DELTA
        outputs = [
            c.report(delta) for c in self.completions if not delta or c.is_due(self._interval)
        ]
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=outputs if self._num_best is None else _best(outputs, self._num_best),
            finished=finished,
            num_cached_tokens=self.num_cached_tokens,
            prompt_logprobs=self.prompt_logprobs if complete else None,
            pooled=self.pooled,
        )

    def _progress_output(self, progress: PromptProgress) -> RequestOutput:
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            progress=progress,
        )


class _Completion:
    """One of the n completions as it grows."""

    def __init__(
        self,
        request: _Request,
        index: int,
        engine_id: str,
        params: SamplingParams,
        tokenizer: Tokenizer,
        parser: OutputParser | None,
    ) -> None:
        self.request = request
        self.index = index
        self.engine_id = engine_id
        self.changed = False
        self._detokenizer = make_detokenizer(
            tokenizer,
            params,
            parser,
            is_shown_at_end=request.kind is RequestOutputKind.FINAL_ONLY,
        )
        self._tokenizer = tokenizer if params.detokenize else None
        self._pieces: list[str] = []  # of the text; for deltas, of what is not reported yet
        self._events: list[Event] | None = None if parser is None else []  # the same, taken apart
        self._token_ids: list[int] = []
        self._logprobs: list[dict[int, Logprob]] | None = (
            None if params.logprobs is None else _no_logprobs(params)
        )
        self._num_listed = len(params.logprob_token_ids or ())
        self._num_listed_of_prompt = len(params.prompt_logprob_token_ids or ())
        is_ranked = params.best_of is not None
        self._cumulative_logprob = 0.0 if is_ranked or self._logprobs is not None else None
        self.finish_reason: FinishReason | None = None
        self._stop_reason: int | str | None = None
        self._error: str | None = None
        self._error_param: str | None = None
        self._num_reported = 0  # tokens

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def is_due(self, interval: int) -> bool:
        """Whether there is something to tell, by a `stream_interval`."""
        num_new = len(self._token_ids) - self._num_reported
        return self.changed and (
            self.finished or self._num_reported == 0 or num_new >= interval or interval == 1
        )

    def take(self, output: EngineOutput) -> None:
        """Append what a step brought."""
        if output.progress is not None:
            self.request.progress = output.progress
            return
        if self.index == 0 and output.num_cached_tokens:
            self.request.num_cached_tokens = output.num_cached_tokens
        if output.prompt_logprobs is not None:
            self._take_prompt_logprobs(output.prompt_logprobs)
            if not output.new_token_ids and output.finish_reason is None:
                return
        self.changed = True
        if output.pooling_output is not None:
            self.request.pooled = output.pooling_output
        ended = output.finish_reason
        piece = self._detokenizer.push(
            output.new_token_ids, stop_token=ended is FinishReason.STOP, finished=ended is not None
        )
        if piece.text or piece.events:
            self._show(piece)
        if self._cumulative_logprob is not None and output.logprobs is not None:
            self._take_logprobs(output.logprobs, piece.num_tokens)
        if piece.stop is not None:
            self._token_ids += output.new_token_ids[: piece.num_tokens]
            self.finish_reason, self._stop_reason = FinishReason.STOP, piece.stop
        else:
            self._token_ids += output.new_token_ids
            self.finish_reason, self._stop_reason = ended, output.stop_reason
            self._error, self._error_param = output.error, output.error_param

    def fail(self, error: str) -> None:
        """End it with what has been shown so far."""
        self.changed = True
        self.finish_reason, self._error = FinishReason.ERROR, error

    def abort(self) -> None:
        """End it here and now; what the detokenizer withholds is shown."""
        self.changed = True
        self._show(self._detokenizer.push((), finished=True))
        self.finish_reason = FinishReason.ABORT

    def report(self, delta: bool) -> CompletionOutput:
        """All of it, or what is new since the last report."""
        tokens = self._num_reported if delta else 0
        self._num_reported = len(self._token_ids)
        self.changed = False
        text = "".join(self._pieces)
        self._pieces = [] if delta else [text]
        events = None if self._events is None else joined(self._events)
        self._events = [] if delta and events is not None else events
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=self._token_ids[tokens:],
            cumulative_logprob=self._cumulative_logprob,
            logprobs=None if self._logprobs is None else self._logprobs[tokens:],
            finish_reason=None if self.finish_reason is None else str(self.finish_reason),
            stop_reason=self._stop_reason,
            error=self._error,
            error_param=self._error_param,
            events=events,
        )

    def _show(self, piece: Piece) -> None:
        if piece.text:
            self._pieces.append(piece.text)
        if self._events is not None:
            self._events += piece.events

    def _take_logprobs(self, rows: LogprobRows, num_tokens: int) -> None:
        if self._logprobs is not None:
            self._logprobs += self._entries(rows, num_tokens, self._num_listed)
        assert self._cumulative_logprob is not None
        self._cumulative_logprob = sum(
            rows.logprobs[:num_tokens, 0].tolist(), self._cumulative_logprob
        )

    def _take_prompt_logprobs(self, rows: LogprobRows) -> None:
        if self.request.prompt_logprobs is not None and self.index == 0:
            entries = self._entries(rows, len(rows), self._num_listed_of_prompt)
            self.request.prompt_logprobs += entries

    def _entries(self, rows: LogprobRows, count: int, num_listed: int) -> list[dict[int, Logprob]]:
        """The first `count` rows: {token id: Logprob}, the token itself first, then the others by
        rank, then those that were listed (without a rank)."""
        entries = []
        ids, logprobs = rows.token_ids.tolist(), rows.logprobs.tolist()
        num_ranked = rows.token_ids.shape[1] - num_listed
        for i, rank in enumerate(rows.ranks.tolist()[:count]):
            entry = {ids[i][0]: Logprob(logprobs[i][0], rank, self._text_of(ids[i][0]))}
            for k, (token_id, logprob) in enumerate(zip(ids[i][1:], logprobs[i][1:]), start=1):
                if token_id not in entry:
                    rank_of_it = k if k < num_ranked else None
                    entry[token_id] = Logprob(logprob, rank_of_it, self._text_of(token_id))
            entries.append(entry)
        return entries

    def _text_of(self, token_id: int) -> str | None:
        """A token's own text; U+FFFD where it is a part of a character."""
        if self._tokenizer is None:
            return None
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")
