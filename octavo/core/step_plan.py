"""A step under construction, and what the scheduler remembers of it until its results are in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import msgspec

from octavo.contracts.step import BlockIds, NewRequestData, SchedulerOutput
from octavo.core.block_pool import Block
from octavo.core.budget import TokenBudget
from octavo.core.request import Request

NO_DRAFTS: Sequence[int] = ()

Scheduled = tuple[Request, int, int, int, int, bool]
"""One request in one step: (request, epoch, start, num_tokens, num_drafts, samples).

    epoch       the request's when it was scheduled; if it has changed, the result is dropped
    start       position of the first token
    num_tokens  drafts included
    samples     whether a token is sampled

A plain tuple, because one is made per request and step: a NamedTuple takes four times as long.
"""


class StepRecord(msgspec.Struct):
    """A step in flight.

    Attributes:
        hashed: blocks that got their hash since the step before it was built: what they hold was
            computed, if not before, in this step.
        planned_at: `time.monotonic()` seconds, where somebody watches (`core.observe`); else 0.
    """

    step_id: int
    scheduled: list[Scheduled] = []
    hashed: list[Block] = []
    planned_at: float = 0.0


class StepPlan:
    """Collects a step: the record for ourselves, and from it the output for the workers.

    For each service class, first the running requests (`add`), then `close_running`, then the
    admitted ones (`add_new`).
    """

    def __init__(self, step_id: int, budget: TokenBudget) -> None:
        self.step = SchedulerOutput(step_id=step_id)
        self.record = StepRecord(step_id)
        self.budget = budget
        self._num_written = 0  # of record.scheduled

    def add(self, request: Request, num_tokens: int, drafts: Sequence[int] = NO_DRAFTS) -> bool:
        """Schedule `num_tokens` tokens of a request, then `drafts`. They count as computed from
        now on: the next step is planned before this one has run.

        Returns:
            Whether the request gets a token sampled.
        """
        start = request.num_computed_tokens
        samples = (
            start + num_tokens == len(request.token_ids) + request.num_output_placeholders
            and not request.is_pooling
        )
        num_drafts = 0
        if drafts:
            num_drafts = len(drafts)
            num_tokens += num_drafts
            request.num_drafts_in_flight = num_drafts
            self.step.scheduled_drafts[request.request_id] = list(drafts)
        self.record.scheduled.append(
            (request, request.epoch, start, num_tokens, num_drafts, samples)
        )
        self.budget.remaining -= num_tokens
        request.num_computed_tokens = start + num_tokens
        request.num_in_flight_tokens += num_tokens
        if samples:
            request.num_output_placeholders += 1 + num_drafts
            request.spec_token_ids = []
        return samples

    def close_running(self) -> None:
        """Write the columns of the running requests that were added since the last time."""
        step, scheduled = self.step, self.record.scheduled[self._num_written :]
        if not scheduled:
            return
        self._num_written += len(scheduled)
        requests, _, starts, counts, _, samples = zip(*scheduled)
        ids = [request.request_id for request in requests]
        step.cached_requests.request_ids += ids
        step.cached_requests.num_computed_tokens += starts
        step.num_scheduled_tokens.update(zip(ids, counts))
        step.samples += compress(ids, samples)

    def computed_before(self, request: Request) -> int:
        """Tokens of the request that earlier steps compute."""
        in_this_step = self.step.num_scheduled_tokens.get(request.request_id, 0)
        return request.num_computed_tokens - in_this_step

    def add_new(self, request: Request, num_tokens: int, block_ids: BlockIds) -> None:
        """Schedule a request that the workers do not know (any more), and tell them all of it."""
        wire = request.engine_request
        params = wire.sampling_params
        masks_stops = params is not None and params.min_tokens > 0
        self.step.new_requests.append(
            NewRequestData(
                request_id=request.request_id,
                token_ids=list(request.token_ids),
                num_prompt_tokens=request.num_prompt_tokens,
                block_ids=block_ids,
                num_computed_tokens=request.num_computed_tokens,
                sampling_params=params,
                pooling_params=wire.pooling_params,
                sample_index=wire.sample_index,
                stop_ids=sorted(request.all_stop_token_ids) if masks_stops else [],
                bad_words_token_ids=wire.bad_words_token_ids,
                thinking=wire.thinking,
                lora_name=wire.lora_name,
                extras=wire.extras,
            )
        )
        self.step.num_scheduled_tokens[request.request_id] = num_tokens
        if self.add(request, num_tokens):
            self.step.samples.append(request.request_id)
        self._num_written = len(self.record.scheduled)
