"""The stage of repetition, frequency and presence penalties."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.contracts.step import NewRequestData
from octavo.kernels.sampling_ops import PenaltyRows, SamplingOps
from octavo.sample.params_state import StagedColumns, sampling_params_of
from octavo.sample.stage import LogitsStage, RequestRows, SampleBatch

_LEAST_CAPACITY = 64


class TokenCounts:
    """The distinct tokens of a prompt and its output, and how often each is in the output.

    A few bytes per distinct token, and none per token of the vocabulary.

    Args:
        prompt: [n] int32; leave it empty where only the output matters.
        num_prompt_tokens: where the output begins.
    """

    def __init__(self, prompt: np.ndarray, num_prompt_tokens: int) -> None:
        distinct = np.unique(prompt)
        self._num_distinct = len(distinct)
        self._slots = dict(zip(distinct.tolist(), range(len(distinct))))
        self._token_ids = np.append(distinct, np.zeros(_LEAST_CAPACITY, np.int32)).astype(np.int32)
        self._counts = np.zeros(len(self._token_ids), dtype=np.int32)
        self._num_counted = num_prompt_tokens  # tokens of the context

    def advance(self, context: np.ndarray) -> None:
        """Count what has been put to the context [n] since the last time."""
        for token_id in context[self._num_counted :].tolist():
            slot = self._slots.get(token_id)
            if slot is None:
                slot = self._add(token_id)
            self._counts[slot] += 1
        self._num_counted = len(context)

    def read(self, drafts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Token ids and counts, two [n] int32, after the counted tokens and `drafts`. They are
        valid until the next `advance`."""
        known = slice(self._num_distinct)
        token_ids, counts = self._token_ids[known], self._counts[known]
        if not len(drafts):
            return token_ids, counts
        counts = counts.copy()
        new: dict[int, int] = {}
        for token_id in drafts.tolist():
            slot = self._slots.get(token_id)
            if slot is None:
                new[token_id] = new.get(token_id, 0) + 1
            else:
                counts[slot] += 1
        ids_of_new = np.fromiter(new.keys(), np.int32, len(new))
        counts_of_new = np.fromiter(new.values(), np.int32, len(new))
        return np.append(token_ids, ids_of_new), np.append(counts, counts_of_new)

    def _add(self, token_id: int) -> int:
        slot = self._slots[token_id] = self._num_distinct
        self._num_distinct += 1
        if slot == len(self._token_ids):
            more = np.zeros(slot, dtype=np.int32)
            self._token_ids = np.append(self._token_ids, more)
            self._counts = np.append(self._counts, more)
        self._token_ids[slot] = token_id
        return slot


class Penalties(LogitsStage):
    """Makes tokens that occurred less likely (or more): see `SamplingParams`."""

    def __init__(self, num_rows: int) -> None:
        self._columns = StagedColumns(num_rows, np.float32, np.float32, np.float32)
        self._counts = RequestRows[TokenCounts](num_rows)

    def add_request(self, row: int, request: NewRequestData) -> None:
        params = sampling_params_of(request)
        values = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        if values == (1.0, 0.0, 0.0):
            return
        self._columns.stage(row, *values)
        num_prompt = request.num_prompt_tokens if params.repetition_penalty != 1.0 else 0
        prompt = np.array(request.token_ids[:num_prompt], dtype=np.int32)
        self._counts.put(row, TokenCounts(prompt, request.num_prompt_tokens))

    def remove_request(self, row: int) -> None:
        self._counts.drop(row)

    def apply_staged_writes(self) -> None:
        self._columns.apply()

    @property
    def is_needed(self) -> bool:
        return bool(self._counts)

    def rows_to_edit(self, batch: SampleBatch) -> np.ndarray | None:
        return self._counts.find(batch.rows)

    def apply(self, ops: SamplingOps, logits: Any, batch: SampleBatch, edited: np.ndarray) -> None:
        rows, positions = batch.rows[edited], batch.positions[edited].tolist()
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        certain = (batch.positions - batch.offsets)[edited].tolist()
        for counts, row, position, num_certain in zip(
            self._counts.of(rows), rows.tolist(), positions, certain
        ):
            counts.advance(batch.token_ids[row, :num_certain])
            parts.append(counts.read(batch.token_ids[row, num_certain:position]))
        token_ids, counts_of_ids = zip(*parts)
        repetition, frequency, presence = (column[rows] for column in self._columns.columns)
        penalties = PenaltyRows(
            repetition=repetition,
            frequency=frequency,
            presence=presence,
            starts=np.cumsum([0, *map(len, token_ids)]).astype(np.int32),
            token_ids=np.concatenate(token_ids),
            counts=np.concatenate(counts_of_ids),
        )
        ops.penalize(logits, edited.astype(np.int32), penalties)
