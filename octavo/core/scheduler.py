"""The scheduler: who computes how many tokens in which step.

A step gives out its token budget, first to running requests, then to waiting ones; prompt chunks,
decoding, prefix hits, recovery after a preemption and drafts are all "compute the next tokens". A
step is planned before the results of the one before it are in: `schedule` counts tokens as computed
and keeps placeholders for those that will be sampled; `update_from_output` settles both, in the
order of steps. Any number of steps may be in flight up to `pipeline_depth`; nothing here asks how
many.

What was in flight for a request that is preempted, or that ends, is dropped: its epoch has changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from octavo.config.sections import SchedulerConfig
from octavo.contracts.engine_view import EngineView
from octavo.contracts.features import Admission, SchedulerHook
from octavo.contracts.kv_spec import KVCacheConfig
from octavo.contracts.messages import (
    BlockTimes,
    EngineOutput,
    EngineRequest,
    FinishReason,
    SchedulerStats,
    ServiceClass,
)
from octavo.contracts.step import BlockIds, RunnerOutput, SchedulerOutput
from octavo.core.block_hash import BlockHasher
from octavo.core.budget import TokenBudget
from octavo.core.counters import Counters
from octavo.core.failures import drop_hashes, errors_of, mark_failed, sharers_since
from octavo.core.forks import Forks
from octavo.core.hooks import HookChain
from octavo.core.integrity import check_scheduler
from octavo.core.kv_cache_manager import KVCacheManager, Prefix
from octavo.core.observe import Observer
from octavo.core.pause import PauseState, have_begun
from octavo.core.policy import MAX_TOKENS_BESIDE, ORDERS, PassedOver, RequestQueue, classes_in
from octavo.core.progress import ProgressReports
from octavo.core.request import Request, RequestStatus, check_request
from octavo.core.room import Room
from octavo.core.step_plan import NO_DRAFTS, StepPlan, StepRecord
from octavo.core.update import settle
from octavo.errors import DuplicateIdError


class Scheduler:
    """Requests, their KV blocks, and the steps they are computed in. Any may set `pause_state`.

    Args:
        config: the scheduler's section.
        kv_cache_config: the pool as planned.
        max_model_len: most tokens of prompt and output.
        enable_prefix_caching: let requests begin on blocks that others computed.
        hooks: core halves of features, asked in this order.
        hash_secret: key of block hashes, 16…64 bytes (see `block_hash.load_hash_secret`); None
            draws one, which ends with this process.

    Raises:
        ConfigError: a KV group that is not supported, a secret of a wrong length.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache_config: KVCacheConfig,
        *,
        max_model_len: int,
        enable_prefix_caching: bool = True,
        hooks: Sequence[SchedulerHook] = (),
        hash_secret: bytes | None = None,
    ) -> None:
        self._config = config
        self._hooks = HookChain(hooks)
        block_size = kv_cache_config.groups[0].spec.block_size
        extra_keys = self._hooks.extra_hash_keys if self._hooks.adds_hash_keys else None
        self._hasher = BlockHasher(hash_secret, block_size, extra_keys)
        self._kv = KVCacheManager(
            kv_cache_config,
            hasher=self._hasher if enable_prefix_caching else None,
            max_in_flight_tokens=config.max_step_tokens * config.pipeline_depth,
        )
        self._forks = Forks(self._kv, self._hasher, max_num_seqs=config.max_num_seqs)
        self._caches_prefixes = enable_prefix_caching
        self._max_model_len = max_model_len
        # No request may outgrow the pool: it would preempt itself for ever.
        self._max_len = self._kv.longest_request(max_model_len)

        order = ORDERS[config.scheduling_policy]
        self.pause_state = PauseState.UNPAUSED
        self._requests: dict[str, Request] = {}
        self._waiting = RequestQueue(order)
        self._running = RequestQueue(order)
        self._room = Room(self._kv, self._forks, self._running, config.max_num_seqs)
        self._in_flight: deque[StepRecord] = deque()
        self._num_arrivals = 0
        self._num_steps = 0
        self._num_deferred = 0  # waiting requests that hooks, or parents, hold back
        self._is_budget_spent = False  # that of the last step
        self._counters = Counters(
            self._kv.pool.num_usable_blocks, caches_prefixes=enable_prefix_caching
        )
        self._observer = Observer(
            self._kv, self._room, self._hooks, waiting=self._waiting, running=self._running
        )
        self._progress = ProgressReports()
        # What happened since the last step was built, and has yet to be told.
        self._finished_ids: dict[str, None] = {}
        self._preempted_ids: dict[str, None] = {}
        self._outputs: list[EngineOutput] = []

    # ---------------------------------------------------------------- requests come and go

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises:
            RequestError: its id is in use, its prompt is empty or holds impossible ids, or it can
                never fit. Nothing has changed then.
        """
        request_id = request.request_id
        if request_id in self._requests or self._hooks.keeps(request_id):
            raise DuplicateIdError(
                f"request id {request_id!r} is in use; choose another", param="request_id"
            )
        check_request(request, self._max_model_len, self._max_len)
        added = Request(
            request,
            arrival_index=self._num_arrivals,
            num_groups=len(self._kv.groups),
            max_len=self._max_len,
        )
        self._num_arrivals += 1
        self._forks.join(added, self._requests)
        self._requests[request_id] = added
        self._waiting.add(added)
        self._progress.add(added)
        self._hooks.added(added)

    def finish_requests(
        self, request_ids: Iterable[str], reason: FinishReason
    ) -> list[EngineOutput]:
        """End requests from outside (the caller went away, a stop string was found). Unknown ids
        are passed over: they may just have ended."""
        requests = [self._requests[r] for r in dict.fromkeys(request_ids) if r in self._requests]
        for request in requests:
            self._end(request)
        return [EngineOutput(request_id=r.request_id, finish_reason=reason) for r in requests]

    def update_draft_token_ids(self, drafts: Mapping[str, Sequence[int]]) -> None:
        """Offer drafts: guesses of the tokens that follow all known ones. They are scheduled, as
        far as they fit, with the request's next step if nothing of it is in flight then, and are
        forgotten otherwise. Unknown ids are passed over."""
        for request_id, token_ids in drafts.items():
            request = self._requests.get(request_id)
            if request is not None and not request.is_pooling:
                request.spec_token_ids = list(token_ids)

    def request_ids(self) -> list[str]:
        """Ids of the requests that wait or run."""
        return list(self._requests)

    def has_unfinished_requests(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._requests)

    def has_work(self) -> bool:
        """Whether a step has work: requests, ids to tell the workers, blocks that hooks keep."""
        if self.pause_state is PauseState.UNPAUSED or self._finished_ids or self._hooks.kept:
            return bool(self._requests or self._finished_ids or self._hooks.kept)
        return self.pause_state is PauseState.PAUSED_NEW and self.has_begun_requests()

    def has_begun_requests(self) -> bool:
        """Whether any request has run and has not ended: it runs, or was preempted."""
        return have_begun((*self._running.requests, *self._waiting.requests))

    # ---------------------------------------------------------------- a step

    def schedule(self) -> SchedulerOutput:
        """Plan the next step. Everything in it counts as computed from now on.

        A step in which something is scheduled must come back to `update_from_output`, in order.
        """
        for request in self._hooks.take_freed():
            self._kv.free(request)
        budget = TokenBudget(
            self._config.token_budget(len(self._running.requests)),
            self._config.long_prefill_token_threshold,
        )
        plan = StepPlan(self._num_steps, budget)
        self._num_steps += 1
        self._num_deferred = 0
        is_still = self.pause_state is PauseState.PAUSED_ALL
        for service_class in () if is_still else classes_in(self._waiting, self._running):
            if self._room.is_shared_with_higher(service_class):
                budget.withhold_all_but(MAX_TOKENS_BESIDE)
            self._schedule_running(plan, service_class)
            # What was just preempted would only fight with what comes in, unless that goes first.
            if self._waiting.requests and all(
                self._requests[r].service_class > service_class for r in self._preempted_ids
            ):
                self._schedule_waiting(plan, service_class)

        step = plan.step
        step.total_num_scheduled_tokens = budget.num_given
        self._is_budget_spent = not budget.remaining
        step.block_copies = self._kv.take_block_copies()
        step.finished_request_ids, self._finished_ids = list(self._finished_ids), {}
        step.preempted_request_ids, self._preempted_ids = list(self._preempted_ids), {}
        self._hooks.add_step_meta(step)
        if plan.record.scheduled:
            plan.record.hashed = self._kv.pool.take_hashed()
            self._observer.planned(plan.record)
            self._in_flight.append(plan.record)
        self._counters.count_step(step.total_num_scheduled_tokens)
        return step

    def _schedule_running(self, plan: StepPlan, service_class: ServiceClass) -> None:
        """Give the running requests of a class their tokens, in order; the last ones of all pay
        with their blocks."""
        requests, budget = self._running.requests, plan.budget
        index, end = self._running.bounds(service_class)
        clamps = self._hooks.clamps
        while index < end and budget.remaining:
            request = requests[index]
            index += 1
            num_tokens = num_wanted = request.num_wanted_tokens()
            if num_wanted <= 0:
                continue
            num_behind = end - index
            if num_wanted > 1:
                num_tokens = budget.chunk(num_wanted, num_behind, request.logprobs_per_prompt_token)
            drafts = NO_DRAFTS
            if request.spec_token_ids and num_tokens == num_wanted:
                drafts = request.usable_drafts()[: budget.num_drafts(num_tokens, num_behind)]
            if clamps:
                num_allowed = self._hooks.clamp(request, num_tokens + len(drafts))
                drafts = drafts[: max(0, num_allowed - num_tokens)]
                num_tokens = min(num_tokens, num_allowed)
                if not num_tokens:
                    continue
            num_reached = request.num_computed_tokens + num_tokens + len(drafts)
            if num_reached > request.num_roomy_tokens:
                block_ids = self._kv.allocate_slots(request, num_tokens + len(drafts))
                if block_ids is None:
                    drafts = NO_DRAFTS
                    block_ids = self._preempt_for(request, num_tokens)
                    end = min(end, len(requests))
                    if block_ids is None:
                        break
                if block_ids[0]:
                    plan.step.cached_requests.new_block_ids[request.request_id] = block_ids
            plan.add(request, num_tokens, drafts)
        plan.close_running()

    def _preempt_for(self, request: Request, num_tokens: int) -> BlockIds | None:
        """Allocate, preempting from the end of the running requests; None if the request itself
        was the last. All that run behind it are not in this step yet."""
        while True:
            block_ids = self._kv.allocate_slots(request, num_tokens)
            if block_ids is not None:
                return block_ids
            victim = self._running.requests[-1]
            self._preempt(victim)
            if victim is request:
                return None

    def _schedule_waiting(self, plan: StepPlan, service_class: ServiceClass) -> None:
        """Admit waiting requests of a class, in order, while there are tokens, and while there are
        places and blocks or a lower class can lose some."""
        waiting = self._waiting.requests
        index, end = self._waiting.bounds(service_class)
        if index == end or not self._room.may_be_found(service_class, 0):
            return
        num_reserved = self._room.num_reserved_blocks(service_class)
        passed_over = PassedOver()
        while (
            index < end
            and plan.budget.remaining
            and not passed_over.holds_up_others
            and self._room.may_be_found(service_class, num_reserved)
        ):
            request = waiting[index]
            verdict, refusing = self._may_start(request, plan)
            if refusing is not None:
                error = refusing.error_of(request)
                self._outputs.append(self._fail(request, error, refusing.error_param))
                end -= 1
                continue
            index += 1
            if verdict is Admission.WAIT:
                self._num_deferred += 1
                continue
            prefix = self._room.prefix_of(request, num_reserved)
            if prefix is None or not self._room.has_place:
                prefix = self._preempt_lower(request, num_reserved)
            if prefix is None:
                passed_over.add(request)
            elif self._admit(request, prefix, plan):
                index -= 1
                end -= 1
                passed_over.count_admission()
                num_reserved += self._kv.num_missing_blocks(request)

    def _may_start(
        self, request: Request, plan: StepPlan
    ) -> tuple[Admission, SchedulerHook | None]:
        """Whether nothing but room keeps a request waiting; the hook that fails it, if one does."""
        if self.pause_state is not PauseState.UNPAUSED and not request.num_preemptions:
            return Admission.WAIT, None
        if self._forks.must_wait(request, plan):
            return Admission.WAIT, None
        return self._hooks.admission(request)

    def _preempt_lower(self, request: Request, num_reserved: int) -> Prefix | None:
        """Preempt running requests of lower classes, which are not in this step yet, until there is
        room for a waiting one. None of them, if there would be none."""
        for victim in self._room.victims_for(request, num_reserved):
            self._preempt(victim)
            prefix = self._room.prefix_of(request, num_reserved)
            if prefix is not None:
                return prefix
        return None

    def _admit(self, request: Request, prefix: Prefix, plan: StepPlan) -> bool:
        """Let a waiting request run; False if a hook allows it no token now."""
        num_wanted = request.num_tokens - prefix.num_tokens
        num_tokens = plan.budget.chunk(num_wanted, 0, request.logprobs_per_prompt_token)
        if self._hooks.clamps:
            num_tokens = self._hooks.clamp(request, num_tokens)
            if not num_tokens:
                return False
        block_ids = self._kv.allocate_slots(request, num_tokens, prefix)
        if block_ids is None:
            raise RuntimeError(f"{request} was found to fit, and does not")
        if request.last_admitted_step < 0 and not prefix.is_fork:
            self._counters.count_prefix(request, prefix)
        self._waiting.remove(request)
        self._running.add(request)
        self._forks.leave(request)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = prefix.num_tokens
        request.is_sharing = prefix.num_tokens > 0
        request.last_admitted_step = plan.record.step_id
        request.num_overtaken = 0
        plan.add_new(request, num_tokens, block_ids)
        return True

    # ---------------------------------------------------------------- results

    def update_from_output(self, step: SchedulerOutput, output: RunnerOutput) -> list[EngineOutput]:
        """Settle a step with its results; steps come in the order in which they were planned.

        Returns:
            What is new for users, and what happened to their requests since the last call.

        Raises:
            ValueError: the step is not the oldest in flight, or has more tokens than it asked for.
        """
        self._hooks.output(step, output)
        outputs, self._outputs = self._outputs, []
        if not step.num_scheduled_tokens:
            return outputs + self._progress.news(self._waiting.requests)
        if not self._in_flight or self._in_flight[0].step_id != step.step_id:
            raise ValueError(f"step {step.step_id} is not the oldest in flight")
        record = self._in_flight.popleft()
        sampled = dict(zip(output.request_ids, output.sampled_token_ids))
        if errors := errors_of(step, output, sampled):
            outputs += self._fail_in(record, errors, output.error_params)
        has_more = output.logprobs or output.prompt_logprobs or output.pooler_outputs
        rest = output if has_more else None
        num_new_tokens = 0
        for scheduled in record.scheduled:
            request = scheduled[0]
            if scheduled[1] != request.epoch:
                continue
            request.num_in_flight_tokens -= scheduled[3]
            new = settle(scheduled, sampled.get(request.request_id, []), rest)
            if new is not None:
                num_new_tokens += len(new.new_token_ids)
                if not request.has_output:
                    self._counters.count_first_output(request, new)
                if new.finish_reason is not None:
                    self._end(request)
                outputs.append(new)
        self._counters.count_results(num_new_tokens, output.forward_seconds)
        self._observer.settled(record, self.stats)
        return outputs + self._progress.news(self._waiting.requests)

    def _fail_in(
        self, record: StepRecord, errors: Mapping[str, str], params: Mapping[str, str]
    ) -> list[EngineOutput]:
        """Fail requests of a step, before the results of the others are looked at; arguments as
        for `mark_failed`."""
        failed, is_news = mark_failed(record, errors, params)
        outputs = [
            self._fail(request, errors[request.request_id], params.get(request.request_id))
            for request in failed
            if not request.is_finished
        ]
        if is_news:  # a worker repeats itself until it knows
            for request in sharers_since(record, self._running.requests):
                self._preempt(request)
            self._forks.forget_sources(self._waiting.requests)
            drop_hashes((record, *self._in_flight), self._kv.pool)
        return outputs

    # ---------------------------------------------------------------- changes of state

    def _preempt(self, request: Request) -> None:
        """Take a running request's blocks; it waits, and will be computed again."""
        self._kv.cache_blocks(request, min(request.num_computed_tokens, request.num_tokens))
        self._kv.free(request)
        request.forget_progress()
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self._running.remove(request)
        self._waiting.add(request)
        self._preempted_ids[request.request_id] = None
        self._counters.count_preemption()
        self._hooks.preempted(request)

    def _fail(self, request: Request, error: str, param: str | None = None) -> EngineOutput:
        self._end(request)
        return EngineOutput(
            request_id=request.request_id,
            finish_reason=FinishReason.ERROR,
            error=error,
            error_param=param,
        )

    def _end(self, request: Request) -> None:
        """Take a request out of everything."""
        is_running = request.status is RequestStatus.RUNNING
        (self._running if is_running else self._waiting).remove(request)
        del self._requests[request.request_id]
        self._finished_ids[request.request_id] = None
        self._preempted_ids.pop(request.request_id, None)
        self._forks.leave(request)
        self._progress.remove(request)
        if not request.has_failed:
            self._kv.cache_blocks(request, min(request.num_computed_tokens, request.num_tokens))
            self._forks.keep_source(request)
        request.status = RequestStatus.FINISHED
        request.epoch += 1
        if not self._hooks.finished(request):
            self._kv.free(request)
        self._observer.ended(request, self._num_steps - 1)

    # ---------------------------------------------------------------- looking at it

    def stats(self) -> SchedulerStats:
        """A snapshot."""
        pool = self._kv.pool
        return self._counters.snapshot(
            num_running=len(self._running.requests),
            num_waiting=len(self._waiting.requests),
            num_deferred=self._num_deferred,
            num_used_blocks=pool.num_used_blocks,
            num_cached_blocks=pool.num_cached_blocks,
        )

    def take_block_times(self) -> BlockTimes | None:
        """What was seen of some blocks since the last call."""
        return self._kv.pool.sampler.take()

    def observe(self, after_step: int = -1, block_id: int | None = None) -> EngineView:
        """What is going on, for a person who watches (`Observer.view`)."""
        return self._observer.view(
            self.stats(),
            is_paused=self.pause_state is not PauseState.UNPAUSED,
            is_budget_spent=self._is_budget_spent,
            after_step=after_step,
            block_id=block_id,
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing done, while requests hold blocks."""
        was_reset = self._kv.reset_prefix_cache()
        if was_reset:
            self._forks.forget_sources(self._waiting.requests)
        return was_reset

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant is broken. Between steps, not within one."""
        check_scheduler(
            requests=self._requests,
            waiting=self._waiting.requests,
            running=self._running.requests,
            kept=self._hooks.kept,
            in_flight=self._in_flight,
            kv=self._kv,
            hasher=self._hasher if self._caches_prefixes else None,
            max_num_seqs=self._config.max_num_seqs,
        )
