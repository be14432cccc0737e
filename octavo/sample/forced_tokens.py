"""The stage that takes the choice away: `trace_decode_token_ids` and `thinking_token_budget`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.contracts.messages import Thinking
from octavo.contracts.step import NewRequestData
from octavo.kernels.sampling_ops import SamplingOps
from octavo.sample.params_state import sampling_params_of
from octavo.sample.stage import LogitsStage, MaskedRows, RequestRows, SampleBatch


class ThinkingBudget:
    """Where the reasoning of one request is, and when its end must come.

    Tokens between the marks count as far as the model wrote them. When the budget is used up, the
    end mark is forced, token by token; what there is of it already is not repeated.

    Args:
        marks: of the model.
        budget: most tokens.
        num_prompt_tokens: where the output begins.
    """

    def __init__(self, marks: Thinking, budget: int, num_prompt_tokens: int) -> None:
        self._start_ids, self._end_ids = marks.start_ids, marks.end_ids
        self._budget = budget
        self._num_prompt_tokens = num_prompt_tokens
        self._num_read = 0
        self._begin: int | None = None  # of what is being thought; None outside

    def forced(self, context: np.ndarray, drafts: np.ndarray) -> int | None:
        """The token that must follow context [n] and drafts [m], if one must."""
        self._read(context)
        certain = self._num_read, self._begin
        if len(drafts):
            context = np.append(context, drafts)
            self._read(context)
        token_id = self._forced_after(context)
        self._num_read, self._begin = certain
        return token_id

    def _read(self, context: np.ndarray) -> None:
        for end, token_id in enumerate(
            context[self._num_read :].tolist(), start=self._num_read + 1
        ):
            if self._begin is None:
                if token_id == self._start_ids[-1] and _ends_with(context[:end], self._start_ids):
                    self._begin = end
            elif token_id == self._end_ids[-1] and _ends_with(
                context[self._begin : end], self._end_ids
            ):
                self._begin = None
        self._num_read = len(context)

    def _forced_after(self, context: np.ndarray) -> int | None:
        if self._begin is None:
            return None
        begin = max(self._begin, self._num_prompt_tokens)
        if len(context) - begin < self._budget:
            return None
        thought = context[self._begin :]
        for count in range(len(self._end_ids) - 1, 0, -1):
            if _ends_with(thought, self._end_ids[:count]):
                return self._end_ids[count]
        return self._end_ids[0]


class ForcedTokens(LogitsStage):
    """Leaves one token where the next one is not for the model to choose."""

    def __init__(self, num_rows: int) -> None:
        self._traces = RequestRows[tuple[list[int], int]](num_rows)  # ids, where they begin
        self._budgets = RequestRows[ThinkingBudget](num_rows)
        self._forced: dict[int, int] = {}  # logits row → token, of the step at hand

    def add_request(self, row: int, request: NewRequestData) -> None:
        params = sampling_params_of(request)
        if params.trace_decode_token_ids:
            self._traces.put(row, (params.trace_decode_token_ids, request.num_prompt_tokens))
        budget = params.thinking_token_budget
        if budget is not None and request.thinking is not None:
            thinking = ThinkingBudget(request.thinking, budget, request.num_prompt_tokens)
            self._budgets.put(row, thinking)

    def remove_request(self, row: int) -> None:
        self._traces.drop(row)
        self._budgets.drop(row)

    @property
    def is_needed(self) -> bool:
        return bool(self._traces or self._budgets)

    def rows_to_edit(self, batch: SampleBatch) -> np.ndarray | None:
        self._forced = {}
        self._find_by_budget(batch)
        if batch.grammar is not None:
            self._leave_to(batch.grammar)
        self._find_by_trace(batch)
        return np.array(sorted(self._forced), dtype=np.int64) if self._forced else None

    def apply(self, ops: SamplingOps, logits: Any, batch: SampleBatch, edited: np.ndarray) -> None:
        logits[edited] = -np.inf
        logits[edited, np.array([self._forced[row] for row in edited.tolist()])] = 0.0

    def _find_by_budget(self, batch: SampleBatch) -> None:
        found = self._budgets.find(batch.rows)
        if found is None:
            return
        for index, position, offset, budget in zip(
            found.tolist(),
            batch.positions[found].tolist(),
            batch.offsets[found].tolist(),
            self._budgets.of(batch.rows[found]),
        ):
            num_certain = position - offset
            context = batch.token_ids[batch.rows[index]]
            token_id = budget.forced(context[:num_certain], context[num_certain:position])
            if token_id is not None:
                self._forced[index] = token_id

    def _leave_to(self, grammar: MaskedRows) -> None:
        """What a request's grammar forbids is not forced."""
        for row, bits in zip(grammar.rows.tolist(), grammar.bitmask):
            token_id = self._forced.get(row)
            if token_id is not None and not int(bits[token_id >> 5]) >> (token_id & 31) & 1:
                del self._forced[row]

    def _find_by_trace(self, batch: SampleBatch) -> None:
        found = self._traces.find(batch.rows)
        if found is None:
            return
        for index, (trace, begin) in zip(found.tolist(), self._traces.of(batch.rows[found])):
            offset = int(batch.positions[index]) - begin
            if offset < len(trace):
                self._forced[index] = trace[offset]


def _ends_with(context: np.ndarray, token_ids: Sequence[int]) -> bool:
    """Whether context [n] ends with the ids."""
    return context[-len(token_ids) :].tolist() == list(token_ids)
