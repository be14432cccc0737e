"""From a step's schedule and the persistent batch to the arrays that a graph replays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec
import numpy as np

from octavo.contracts.step import GrammarOutput, SchedulerOutput
from octavo.kernels.ops import StepInputs
from octavo.kernels.step_gather import StepGather
from octavo.sample.stage import MaskedRows
from octavo.worker.request_state import RequestState


class StepBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One step: B requests, T tokens, R logits rows.

    A request that samples has one logits row per draft and one more, next to each other.

    Attributes:
        request_ids: [B], the batch's order.
        rows: [B] int64, row of the persistent batch.
        inputs: what the graph replays.
        num_logits: [B] logits rows of each request; 0 where it does not sample.
        logit_rows_of_state: [R] int64, row of the persistent batch.
        logit_offsets: [R] int32, drafts of the same request before it.
        logit_positions: [R] int32, absolute position of the token that the row samples.
    """

    request_ids: Sequence[str]
    rows: np.ndarray
    inputs: StepInputs
    num_logits: Sequence[int]
    logit_rows_of_state: np.ndarray
    logit_offsets: np.ndarray
    logit_positions: np.ndarray


class StepBatchBuilder:
    """Builds the batch of a step from the persistent batch.

    The arrays of a batch are valid until the next `build`.

    Args:
        state: the persistent batch.
        max_tokens, max_requests: of a step.
    """

    def __init__(self, state: RequestState, *, max_tokens: int, max_requests: int) -> None:
        self._state = state
        self._gather = StepGather(
            token_ids=state.token_ids,
            num_tokens=state.num_tokens,
            num_computed_tokens=state.num_computed_tokens,
            block_tables=[table.blocks for table in state.block_tables],
            block_sizes=[table.block_size for table in state.block_tables],
            max_tokens=max_tokens,
            max_requests=max_requests,
        )

    def build(self, step: SchedulerOutput, request_ids: Sequence[str]) -> StepBatch:
        """The batch of `request_ids` (those of the step that have not failed), at least one.

        Raises:
            KernelError: a token was scheduled that is not known, or more than fit.
        """
        rows = list(map(self._state.rows.__getitem__, request_ids))
        counts = list(map(step.num_scheduled_tokens.__getitem__, request_ids))
        if step.scheduled_drafts:
            self._write_drafts(request_ids, counts, step.scheduled_drafts)
        num_logits = _num_logits(step, request_ids)
        arrays = self._gather.gather(rows, counts, num_logits)
        return StepBatch(
            request_ids=request_ids,
            rows=arrays.rows,
            inputs=arrays.inputs,
            num_logits=num_logits,
            logit_rows_of_state=arrays.logit_rows_of_state,
            logit_offsets=arrays.logit_offsets,
            logit_positions=arrays.logit_positions,
        )

    def write_sampled(self, token_ids: Sequence[int]) -> None:
        """Put what the logits rows of the last batch sampled into the persistent batch."""
        self._gather.write_sampled(token_ids)

    def _write_drafts(
        self,
        request_ids: Sequence[str],
        counts: Sequence[int],
        drafts: Mapping[str, Sequence[int]],
    ) -> None:
        """Drafts are the last scheduled tokens of a request."""
        state = self._state
        for request_id, count in zip(request_ids, counts):
            if draft := drafts.get(request_id):
                end = int(state.num_computed_tokens[state.rows[request_id]]) + count
                state.write_drafts(request_id, end - len(draft), draft)


def _num_logits(step: SchedulerOutput, request_ids: Sequence[str]) -> list[int]:
    """Logits rows of each request: one per draft and one more where it samples."""
    if not step.scheduled_drafts and len(step.samples) == len(step.num_scheduled_tokens):
        return [1] * len(request_ids)
    samples, drafts = set(step.samples), step.scheduled_drafts
    return [1 + len(drafts.get(r, ())) if r in samples else 0 for r in request_ids]


def masked_rows(
    grammar: GrammarOutput, step: SchedulerOutput, batch: StepBatch
) -> MaskedRows | None:
    """The masks of a step by logits row; None where all who have one left the batch."""
    spans = {
        request_id: (end - count, end)
        for request_id, end, count in zip(
            batch.request_ids, accumulate(batch.num_logits), batch.num_logits
        )
    }
    rows: list[int] = []
    mask_rows: list[int] = []
    start = 0
    for request_id in grammar.request_ids:
        count = 1 + len(step.scheduled_drafts.get(request_id, ()))
        if request_id in spans:
            rows += range(*spans[request_id])
            mask_rows += range(start, start + count)
        start += count
    if not rows:
        return None
    is_whole = len(mask_rows) == len(grammar.bitmask)
    return MaskedRows(
        rows=np.array(rows, dtype=np.int32),
        bitmask=grammar.bitmask if is_whole else grammar.bitmask[mask_rows],
    )
