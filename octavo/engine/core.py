"""EngineCore: the loop over scheduler and executor, with up to `pipeline_depth` steps in flight.

    fill the queue:  schedule() → execute_model(step) → sample_tokens(grammar) → a result to come
    take the oldest: result() → update_from_output()

With depth 1 that is synchronous; with more, step k+1 is scheduled and submitted before the result
of step k is waited for. A grammar's mask needs the tokens before it: where step k samples one of
these, step k+1 is executed, but sampled only when the result of step k is known.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from octavo import env
from octavo.contracts.engine_view import EngineView
from octavo.contracts.features import SchedulerHook
from octavo.contracts.messages import (
    BlockTimes,
    EngineOutput,
    EngineRequest,
    FinishReason,
    SchedulerStats,
)
from octavo.contracts.pause_mode import PauseMode
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.step import RunnerOutput, SchedulerOutput
from octavo.contracts.structured_outputs import GRAMMAR_PARAM, GrammarSource
from octavo.core.block_hash import load_hash_secret
from octavo.core.pause import PauseState
from octavo.core.scheduler import Scheduler
from octavo.engine.bad_words import check_bad_words
from octavo.engine.deadlines import Deadlines
from octavo.errors import ConfigError, EngineDeadError, OctavoError, RequestError
from octavo.executor.base import Done, Executor, StepResult
from octavo.log import get_logger
from octavo.structured.manager import StructuredOutputs
from octavo.structured.vocabulary import Vocabulary

logger = get_logger(__name__)

_IDLE_WAIT_SECONDS = 0.001
"""How long a step waits that finds requests but none that may run (a hook holds them back)."""

_NO_GRAMMARS = "structured outputs need the model's tokenizer, which this engine was not given"


class _InFlight(msgspec.Struct):
    """A step whose forward was submitted, and its sampling too once it has a `result`."""

    step: SchedulerOutput
    result: StepResult | None = None


class EngineCore:
    """Scheduler, executor, and the steps between them.

    A step that the executor fails ends the requests of that step with an error; the engine goes on
    as long as the executor is healthy. When it is not, or when the scheduler itself breaks, the
    engine is dead: this and every later call raises `EngineDeadError`.

    Args:
        executor: not started yet; it resolves its configuration (`info.config`).
        hooks: core halves of features.
        vocabulary: makes the vocabulary for a number of logits columns, when the first request
            with a grammar comes; without it such requests are refused.

    Raises:
        ConfigError, MemoryPlanError, ModelError: the executor cannot start.
    """

    def __init__(
        self,
        executor: Executor,
        hooks: Sequence[SchedulerHook] = (),
        *,
        vocabulary: Callable[[int], Vocabulary] | None = None,
    ) -> None:
        self._executor = executor
        self._structured: StructuredOutputs | None = None
        try:
            self.info = executor.start()
            self.config = self.info.config
            assert self.config.model.max_model_len is not None
            if vocabulary is not None:
                vocab_size = self.info.vocab_size
                self._structured = StructuredOutputs(
                    partial(vocabulary, vocab_size), vocab_size=vocab_size
                )
                hooks = (self._structured, *hooks)
            self.scheduler = Scheduler(
                self.config.scheduler,
                self.info.kv_cache_config,
                max_model_len=self.config.model.max_model_len,
                enable_prefix_caching=self.config.cache.enable_prefix_caching,
                hooks=hooks,
                hash_secret=_hash_secret(),
            )
        except BaseException:
            executor.shutdown()
            raise
        self._depth = self.config.scheduler.pipeline_depth
        self._in_flight: deque[_InFlight] = deque()
        # Arrival of requests that have never run, queue time of those that have had no output.
        self._arrivals: dict[str, float] = {}
        self._queue_times: dict[str, float] = {}
        self._ended: list[EngineOutput] = []  # last outputs of requests that a pause aborted
        self._deadlines = Deadlines()
        self._check_integrity = env.check_integrity()
        self._dead: EngineDeadError | None = None

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises:
            RequestError: a duplicate id, it can never fit, or it asks for what there is not.
        """
        self._ensure_alive()
        _check_request(request, self.info.vocab_size, self.info.hidden_size)
        if request.grammar is not None and self._structured is None:
            raise RequestError(_NO_GRAMMARS, param=GRAMMAR_PARAM)
        self.scheduler.add_request(request)
        arrival = request.arrival_time or time.monotonic()
        self._arrivals[request.request_id] = arrival
        if request.sampling_params is not None:
            self._deadlines.add(request.request_id, request.sampling_params, arrival)

    def check_grammar(self, grammar: GrammarSource, first: Sequence[int] | None) -> str | None:
        """What is wrong with a grammar (`StructuredOutputs.check`), "" if nothing; None while it is
        compiled: to be asked again, or taken back by `forget_grammar`."""
        self._ensure_alive()
        if self._structured is None:
            return _NO_GRAMMARS
        return self._structured.check(grammar, first)

    def forget_grammar(self, grammar: GrammarSource) -> None:
        """Whoever asked `check_grammar` does not wait any more."""
        if self._structured is not None:
            self._structured.forget(grammar)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests at once. Nothing more comes of them; unknown ids are passed over."""
        self._ensure_alive()
        for output in self.scheduler.finish_requests(request_ids, FinishReason.ABORT):
            self._arrivals.pop(output.request_id, None)
            self._queue_times.pop(output.request_id, None)
            self._deadlines.remove(output.request_id)

    def request_ids(self) -> list[str]:
        """Ids of the requests that have not ended."""
        return self.scheduler.request_ids()

    def pause(self, mode: PauseMode) -> None:
        """Admit no requests until `resume`; they wait. Those that have begun are aborted (their
        last outputs come from the next `step`), go on to their end, or keep what they have."""
        self._ensure_alive()
        scheduler = self.scheduler
        scheduler.pause_state = PauseState.PAUSED_ALL if mode == "keep" else PauseState.PAUSED_NEW
        if mode == "abort":
            ids = scheduler.request_ids()
            self._ended += scheduler.finish_requests(ids, FinishReason.ABORT)

    def resume(self) -> None:
        """Go on after a `pause`."""
        self._ensure_alive()
        self.scheduler.pause_state = PauseState.UNPAUSED

    def is_paused(self) -> bool:
        """Whether it was paused, and not resumed since."""
        return self.scheduler.pause_state is not PauseState.UNPAUSED

    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        if self._ended or self._in_flight or self.scheduler.has_work():
            return True
        return self._deadlines.may_be_late(time.monotonic())  # of requests that a pause holds

    def stats(self) -> SchedulerStats:
        """The scheduler's counters now."""
        return self.scheduler.stats()

    def take_block_times(self) -> BlockTimes | None:
        """What was seen of some blocks since the last call."""
        return self.scheduler.take_block_times()

    def observe(self, after_step: int = -1, block_id: int | None = None) -> EngineView:
        """What is going on (`Scheduler.observe`)."""
        self._ensure_alive()
        return self.scheduler.observe(after_step, block_id)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False (and nothing done) while requests hold blocks."""
        self._ensure_alive()
        return self.scheduler.reset_prefix_cache()

    def step(self) -> list[EngineOutput]:
        """Submit steps until `pipeline_depth` are in flight, then take the result of the oldest.

        Returns:
            The outputs of one step; none when there was nothing to do.

        Raises:
            EngineDeadError: the engine cannot go on.
        """
        self._ensure_alive()
        try:
            return self._step()
        except EngineDeadError as error:
            self._dead = error
            raise
        except Exception as error:  # the scheduler's state can no longer be trusted
            logger.exception("the engine core failed")
            self._dead = EngineDeadError(f"the engine core failed: {_text_of(error)}")
            raise self._dead from error

    def shutdown(self) -> None:
        """Stop the executor. May be called twice."""
        self._dead = self._dead or EngineDeadError("the engine was shut down")
        self._in_flight.clear()
        if self._structured is not None:
            self._structured.close()
        self._executor.shutdown()

    # ---------------------------------------------------------------- one step

    def _step(self) -> list[EngineOutput]:
        late = self._deadlines.take_late(time.monotonic())
        outputs, self._ended = self._ended, []
        if late:
            outputs += self.scheduler.finish_requests(late, FinishReason.TIMEOUT)
        while self._may_submit() and self.scheduler.has_work():
            step = self.scheduler.schedule()
            if _is_empty(step):
                outputs += self.scheduler.update_from_output(
                    step, RunnerOutput(step_id=step.step_id)
                )
                break
            if step.new_requests:
                self._note_scheduled(step)
            self._in_flight.append(self._execute(step))
            outputs += self._sample_newest()
        if self._in_flight:
            oldest = self._in_flight[0]
            result = self._result_of(oldest)  # Ctrl-C in here loses nothing
            self._in_flight.popleft()
            outputs += self.scheduler.update_from_output(oldest.step, result)
            if self._in_flight:
                outputs += self._sample_newest()
            if self._structured is not None:
                if oldest.step.grammar_request_ids:
                    self._offer_forced_tokens(self._structured, oldest.step)
                self._structured.give_way()
        elif not outputs and self.scheduler.has_unfinished_requests():
            time.sleep(_IDLE_WAIT_SECONDS)
        if self._check_integrity:
            self.scheduler.check_integrity()
        self._note_outputs(outputs)
        return outputs

    def _may_submit(self) -> bool:
        """Whether the executor takes another step now: it samples the last one first."""
        return not self._in_flight or (
            len(self._in_flight) < self._depth and self._in_flight[-1].result is not None
        )

    def _execute(self, step: SchedulerOutput) -> _InFlight:
        try:
            self._executor.execute_model(step)
        except Exception as error:
            return _InFlight(step, Done(error))
        return _InFlight(step)

    def _sample_newest(self) -> list[EngineOutput]:
        """Submit the sampling of the newest step, if that is still to be done and the tokens that
        its masks follow are known. Returns the ends of requests whose grammar gave up."""
        newest = self._in_flight[-1]
        if newest.result is not None:
            return []
        constrained = newest.step.grammar_request_ids
        outputs: list[EngineOutput] = []
        grammar = None
        if constrained and self._structured is not None:
            before = list(self._in_flight)[:-1]
            if any(not set(constrained).isdisjoint(older.step.samples) for older in before):
                return []
            grammar, failed = self._structured.masks(newest.step)
            for request_id, error in failed.items():
                for output in self.scheduler.finish_requests([request_id], FinishReason.ERROR):
                    output.error, output.error_param = error, self._structured.error_param
                    outputs.append(output)
        try:
            newest.result = self._executor.sample_tokens(grammar)
        except Exception as error:
            newest.result = Done(error)
        return outputs

    def _offer_forced_tokens(self, structured: StructuredOutputs, step: SchedulerOutput) -> None:
        """What grammars leave no choice about after a step goes into the next one, as drafts."""
        drafts = structured.forced_token_ids(step.grammar_request_ids)
        self.scheduler.update_draft_token_ids(drafts)

    def _result_of(self, in_flight: _InFlight) -> RunnerOutput:
        """The step's result; where it failed, one that fails every request in it."""
        step, result = in_flight.step, in_flight.result
        assert result is not None, "the oldest step waits for nothing"
        try:
            return result.result()
        except EngineDeadError:
            raise
        except Exception as error:
            self._executor.check_health()
            logger.error("step %d failed", step.step_id, exc_info=error)
            ids = list(step.num_scheduled_tokens)
            message = f"the step that computed this request failed: {_text_of(error)}"
            return RunnerOutput(
                step_id=step.step_id,
                request_ids=ids,
                sampled_token_ids=[[] for _ in ids],
                errors=dict.fromkeys(ids, message),
            )

    def _note_scheduled(self, step: SchedulerOutput) -> None:
        """Requests that a step brings to the workers for the first time have waited until now."""
        for new in step.new_requests:
            arrival = self._arrivals.pop(new.request_id, None)
            if arrival is not None:
                self._queue_times[new.request_id] = max(0.0, time.monotonic() - arrival)

    def _note_outputs(self, outputs: list[EngineOutput]) -> None:
        has_deadlines = bool(self._deadlines)
        for output in outputs:
            if output.progress is not None:
                continue
            output.queue_time = self._queue_times.pop(output.request_id, None)
            if output.finish_reason is not None:
                self._arrivals.pop(output.request_id, None)
                self._deadlines.remove(output.request_id)
            elif has_deadlines and output.new_token_ids:
                self._deadlines.has_begun(output.request_id)

    def _ensure_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(str(self._dead)) from self._dead


def _hash_secret() -> bytes | None:
    """The user's secret for block hashes, so that cached blocks keep their names from one process
    to the next; None, with a warning, where it cannot be kept."""
    try:
        return load_hash_secret(env.octavo_home() / "block_hash.secret")
    except ConfigError as error:
        logger.warning("%s; until then the names of cached blocks end with the process", error)
        return None


def _check_request(request: EngineRequest, vocab_size: int, hidden_size: int) -> None:
    """What the front end should have seen to: a core does not trust its clients."""
    if request.lora_name is not None:
        raise RequestError("lora_name is not supported yet", param="lora_name")
    if request.extras:
        raise RequestError(f"extras {sorted(request.extras)} are unknown", param="extras")
    for name in ("prompt_token_ids", "eos_token_ids"):
        _check_ids(name, getattr(request, name), vocab_size)
    for ids in request.bad_words_token_ids:
        _check_ids("bad_words_token_ids", ids, vocab_size)
    check_bad_words(request.bad_words_token_ids)
    if request.thinking is not None:
        for ids in (request.thinking.start_ids, request.thinking.end_ids):
            _check_ids("thinking", ids, vocab_size)
    params, pooling = request.sampling_params, request.pooling_params
    if pooling is not None:
        _check_pooling(pooling, hidden_size)
    if params is not None:
        _check_sampling(params, vocab_size)


def _check_pooling(params: PoolingParams, hidden_size: int) -> None:
    if params.pooling_type is None:
        raise RequestError("the front end must give a pooling type", param="pooling_type")
    params.check_hidden_size(hidden_size)


def _check_sampling(params: SamplingParams, vocab_size: int) -> None:
    if params.seed is None:
        raise RequestError("the front end must give a seed", param="seed")
    if params.structured_outputs is not None:
        raise RequestError(
            "structured_outputs must come as the request's grammar", param=GRAMMAR_PARAM
        )
    params.check_vocabulary(vocab_size)


def _check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        wrong = next(i for i in ids if not 0 <= i < vocab_size)
        raise RequestError(
            f"{name} holds {wrong}; the model's ids are 0…{vocab_size - 1}", param=name
        )


def _is_empty(step: SchedulerOutput) -> bool:
    """Whether the workers need not hear of it."""
    return not (
        step.num_scheduled_tokens or step.finished_request_ids or step.preempted_request_ids
    )


def _text_of(error: Exception) -> str:
    return str(error) if isinstance(error, OctavoError) else f"{type(error).__name__}: {error}"
