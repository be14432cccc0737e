"""Sampling: from a step's logits to token ids and log probabilities.

The order is vLLM's: log probabilities are those of the raw logits; then the stop ids of requests
below `min_tokens` are masked; then each row is drawn (greedy where its temperature is 0). A stage
that no request in the batch needs costs nothing. A stage is a small class with state per row of the
persistent batch and `RunnerFeature`'s life cycle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.contracts.features import RunnerFeature
from octavo.contracts.messages import LogprobRows
from octavo.contracts.step import NewRequestData
from octavo.kernels.ops import Backend, SamplingOps
from octavo.sample.params_state import (
    DrawParams,
    StagedColumns,
    sampling_params_of,
)


class MinTokens(RunnerFeature):
    """Masks a request's stop ids while fewer than `min_tokens` tokens are out."""

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._until = StagedColumns(num_rows, np.int32)  # first position where the end may come
        self._stop_ids: dict[int, np.ndarray] = {}

    def add_request(self, row: int, request: NewRequestData) -> None:
        params = sampling_params_of(request)
        stop_ids = [i for i in request.stop_ids if 0 <= i < self._vocab_size]
        until = request.num_prompt_tokens + params.min_tokens
        if params.min_tokens > 0 and stop_ids:
            self._stop_ids[row] = np.array(sorted(set(stop_ids)), dtype=np.int32)
            self._until.stage(row, min(until, np.iinfo(np.int32).max))
        else:
            self._until.stage(row, 0)

    def remove_request(self, row: int) -> None:
        self._stop_ids.pop(row, None)

    def apply_staged_writes(self) -> None:
        self._until.apply()

    def entries(
        self, rows: np.ndarray, positions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """What to mask, as (logits row, token id) pairs: two [n] int32; None for nothing."""
        if not self._stop_ids:
            return None
        masked = np.flatnonzero(positions < self._until.columns[0][rows])
        if not len(masked):
            return None
        ids = [self._stop_ids[row] for row in rows[masked].tolist()]
        return np.repeat(masked, [len(i) for i in ids]).astype(np.int32), np.concatenate(ids)


class Logprobs(RunnerFeature):
    """Log probabilities of the sampled token and of the k most likely."""

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._k_plus_1 = StagedColumns(num_rows, np.int32)  # 0: not asked for
        self._rows: set[int] = set()

    def add_request(self, row: int, request: NewRequestData) -> None:
        k = sampling_params_of(request).logprobs
        if k is None:
            self._k_plus_1.stage(row, 0)
            return
        self._k_plus_1.stage(row, 1 + (self._vocab_size if k == -1 else min(k, self._vocab_size)))
        self._rows.add(row)

    def remove_request(self, row: int) -> None:
        self._rows.discard(row)

    def apply_staged_writes(self) -> None:
        self._k_plus_1.apply()

    def wanted(self, rows: np.ndarray) -> np.ndarray | None:
        """1 + k per logits row, 0 where not asked for: [R]; None where nothing is."""
        if not self._rows:
            return None
        wanted = self._k_plus_1.columns[0][rows]
        return wanted if wanted.any() else None

    @staticmethod
    def gather(
        ops: SamplingOps, logits: Any, wanted: np.ndarray, token_ids: np.ndarray
    ) -> dict[int, LogprobRows]:
        """Logits row → its log probabilities (one row each), for all rows where wanted > 0."""
        gathered: dict[int, LogprobRows] = {}
        for width in np.unique(wanted[wanted > 0]).tolist():
            rows = np.flatnonzero(wanted == width).astype(np.int32)
            ids, logprobs, ranks = ops.logprobs(logits, rows, token_ids[rows], width - 1)
            for i, row in enumerate(rows.tolist()):
                one = slice(i, i + 1)
                gathered[row] = LogprobRows(ids[one], logprobs[one], ranks[one])
        return gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRows:
    """What the logits rows of a step gave.

    Attributes:
        token_ids: [R] int32; no token's id where the row failed.
        failed: logits rows without a token: their logits are not finite.
        logprobs: logits row → its log probabilities, where asked for.
    """

    token_ids: np.ndarray
    failed: frozenset[int] = frozenset()
    logprobs: dict[int, LogprobRows] = field(default_factory=dict)


class Sampler:
    """The stages in order.

    Args:
        num_rows: rows of the persistent batch.
    """

    def __init__(self, backend: Backend, *, num_rows: int, vocab_size: int) -> None:
        self._backend = backend
        self._vocab_size = vocab_size
        self._draws = DrawParams(num_rows)
        self._min_tokens = MinTokens(num_rows, vocab_size)
        self._logprobs = Logprobs(num_rows, vocab_size)
        self.stages: tuple[RunnerFeature, ...] = (self._draws, self._min_tokens, self._logprobs)

    def sample(self, logits: Any, rows: np.ndarray, positions: np.ndarray) -> SampledRows:
        """One token per logits row.

        Args:
            logits: the back end's array [R, vocab] float32; unchanged only where nothing is masked.
            rows: [R] the row of the persistent batch that each logits row belongs to.
            positions: [R] absolute position of the token to be sampled.
        """
        ops = self._backend.sampling
        wanted = self._logprobs.wanted(rows)
        masked = self._min_tokens.entries(rows, positions)
        raw = None
        if masked is not None:
            if wanted is not None:
                raw = logits[masked]  # a copy
            ops.mask(logits, *masked)
        token_ids = ops.sample(logits, self._draws.gather(rows, positions))
        failed = self._not_finite(logits, token_ids)
        if wanted is None:
            return SampledRows(token_ids=token_ids, failed=failed)
        if raw is not None:
            logits[masked] = raw
        wanted[list(failed)] = 0
        return SampledRows(
            token_ids=token_ids,
            failed=failed,
            logprobs=self._logprobs.gather(ops, logits, wanted, token_ids),
        )

    def _not_finite(self, logits: Any, token_ids: np.ndarray) -> frozenset[int]:
        """Rows whose chosen logit is not finite: NaN spreads over the whole row (hidden states
        with a NaN give a row of NaN), so that the chosen one tells."""
        inside = np.clip(token_ids, 0, self._vocab_size - 1).astype(np.int64)
        chosen = self._backend.to_numpy(logits[np.arange(len(inside)), inside])
        good = np.isfinite(chosen) & (inside == token_ids)
        return frozenset() if good.all() else frozenset(np.flatnonzero(~good).tolist())
