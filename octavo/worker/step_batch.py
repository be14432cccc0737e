"""From a step's schedule and the persistent batch to the arrays that a graph replays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.contracts.step import GrammarOutput, SchedulerOutput
from octavo.kernels.ops import StepInputs
from octavo.sample.stage import MaskedRows
from octavo.worker.request_state import RequestState


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """One step: B requests, T tokens, S requests that sample, R logits rows.

    A request that samples has one logits row per draft and one more, next to each other.

    Attributes:
        request_ids: [B], the batch's order.
        rows: [B] int64, row of the persistent batch.
        inputs: what the graph replays.
        sample_index: [S] index into `request_ids`, ascending.
        num_logits: [S] logits rows of each.
        logit_rows_of_state: [R] int64, row of the persistent batch.
        logit_offsets: [R] int32, drafts of the same request before it.
        logit_positions: [R] int32, absolute position of the token that the row samples.
    """

    request_ids: Sequence[str]
    rows: np.ndarray
    inputs: StepInputs
    sample_index: np.ndarray
    num_logits: np.ndarray
    logit_rows_of_state: np.ndarray
    logit_offsets: np.ndarray
    logit_positions: np.ndarray


class StepBatchBuilder:
    """Builds the batch of a step, in numpy over all requests at once.

    The arrays of a batch are valid until the next `build`.

    Args:
        max_tokens, max_requests: of a step.
    """

    def __init__(self, *, max_tokens: int, max_requests: int) -> None:
        self._counting = np.arange(max(max_tokens, max_requests + 1), dtype=np.int32)
        self._ones = np.ones(max_requests, dtype=np.int64)
        self._zeros = np.zeros(max_requests, dtype=np.int32)
        self._query_start = np.zeros(max_requests + 1, dtype=np.int32)

    def build(
        self, step: SchedulerOutput, state: RequestState, request_ids: Sequence[str]
    ) -> StepBatch:
        """The batch of `request_ids` (those of the step that have not failed), at least one."""
        num_requests = len(request_ids)
        rows = np.fromiter(map(state.rows.__getitem__, request_ids), np.int64, num_requests)
        if step.total_num_scheduled_tokens == len(step.num_scheduled_tokens) == len(step.samples):
            return self._build_decode(state, request_ids, rows)
        counts = np.fromiter(
            map(step.num_scheduled_tokens.__getitem__, request_ids), np.int32, num_requests
        )
        query_start = self._query_start[: num_requests + 1]
        np.cumsum(counts, out=query_start[1:])
        num_tokens = int(query_start[-1])

        computed = state.num_computed_tokens[rows]
        seq_lens = computed + counts
        if step.scheduled_drafts:
            _write_drafts(state, request_ids, seq_lens, step.scheduled_drafts)
        else:
            _check_known(state, rows, seq_lens)
        token_rows = np.repeat(rows, counts)
        positions = np.repeat(computed - query_start[:-1], counts) + self._counting[:num_tokens]

        index, num_logits = self._who_samples(step, request_ids)
        logit_rows = _last_rows(query_start[index + 1], num_logits)
        return StepBatch(
            request_ids=request_ids,
            rows=rows,
            inputs=_inputs(state, rows, token_rows, positions, query_start, seq_lens, logit_rows),
            sample_index=index,
            num_logits=num_logits,
            logit_rows_of_state=token_rows[logit_rows],
            logit_offsets=_offsets(num_logits),
            logit_positions=positions[logit_rows] + 1,
        )

    def _build_decode(
        self, state: RequestState, request_ids: Sequence[str], rows: np.ndarray
    ) -> StepBatch:
        """The batch where every request has one token and samples, as in most steps: between two
        forwards, each call into numpy fetches its code and data from memory."""
        num_requests = len(request_ids)
        positions = state.num_computed_tokens[rows]
        seq_lens = positions + 1
        _check_known(state, rows, seq_lens)
        query_start = self._counting[: num_requests + 1]
        index = query_start[:-1]
        return StepBatch(
            request_ids=request_ids,
            rows=rows,
            inputs=_inputs(state, rows, rows, positions, query_start, seq_lens, index),
            sample_index=index,
            num_logits=self._ones[:num_requests],
            logit_rows_of_state=rows,
            logit_offsets=self._zeros[:num_requests],
            logit_positions=seq_lens,
        )

    def _who_samples(
        self, step: SchedulerOutput, request_ids: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the requests that sample [S], and how many logits rows each needs [S]."""
        chosen = set(step.samples)
        index = np.array([i for i, r in enumerate(request_ids) if r in chosen], dtype=np.int64)
        num_logits = np.ones(len(index), dtype=np.int64)
        if step.scheduled_drafts:
            for s, i in enumerate(index.tolist()):
                num_logits[s] += len(step.scheduled_drafts.get(request_ids[i], ()))
        return index, num_logits


def masked_rows(
    grammar: GrammarOutput, step: SchedulerOutput, batch: StepBatch
) -> MaskedRows | None:
    """The masks of a step by logits row; None where all who have one left the batch."""
    ends = np.cumsum(batch.num_logits).tolist()
    counts = batch.num_logits.tolist()
    spans = {
        batch.request_ids[i]: (end - count, end)
        for i, end, count in zip(batch.sample_index.tolist(), ends, counts)
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


def _inputs(
    state: RequestState,
    rows: np.ndarray,
    token_rows: np.ndarray,
    positions: np.ndarray,
    query_start: np.ndarray,
    seq_lens: np.ndarray,
    logit_rows: np.ndarray,
) -> StepInputs:
    """What the graph replays for requests in `rows` [B]; token_rows [T] is each token's row."""
    longest = int(seq_lens.max())
    return StepInputs(
        token_ids=state.token_ids[token_rows, positions],
        positions=positions,
        query_start=query_start,
        seq_lens=seq_lens,
        block_tables=[table.gather(rows, longest) for table in state.block_tables],
        slot_mapping=[table.slots(token_rows, positions) for table in state.block_tables],
        logit_rows=logit_rows,
    )


def _check_known(state: RequestState, rows: np.ndarray, seq_lens: np.ndarray) -> None:
    """What is computed for `rows` [B] up to `seq_lens` [B] must be there."""
    assert (state.num_tokens[rows] >= seq_lens).all(), "a token was scheduled but not known"


def _last_rows(ends: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The last counts[i] integers below ends[i], for every i, in a row: int32."""
    before = np.cumsum(counts, dtype=np.int32)
    total = int(before[-1]) if len(before) else 0
    return np.repeat(ends - before, counts) + np.arange(total, dtype=np.int32)


def _offsets(counts: np.ndarray) -> np.ndarray:
    """0 … counts[i]-1 for every i, in a row: int32."""
    ends = counts.astype(np.int32)
    return _last_rows(ends, ends)


def _write_drafts(
    state: RequestState,
    request_ids: Sequence[str],
    seq_lens: np.ndarray,
    drafts: Mapping[str, Sequence[int]],
) -> None:
    """Drafts are the last scheduled tokens of a request, up to its seq_lens [B]."""
    for request_id, end in zip(request_ids, seq_lens.tolist()):
        if draft := drafts.get(request_id):
            state.write_drafts(request_id, end - len(draft), draft)
