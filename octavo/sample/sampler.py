"""Sampling: from a step's logits to token ids and log probabilities.

The order is vLLM's. Log probabilities are those of the raw logits. Then the logits are edited:
grammars, allowed ids, bad words, stop ids of requests below `min_tokens`, biases, logits
processors, penalties, forced tokens. Then each row is drawn (greedy where its temperature is 0):
temperature, processors that keep the argmax, min-p, top-k, top-p. A stage that no request in the
batch needs is not asked. A stage is a small class with state per row of the persistent batch and
`RunnerFeature`'s life cycle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np

from octavo.config.sections import LogprobsMode
from octavo.contracts.features import RunnerFeature
from octavo.contracts.messages import LogprobRows
from octavo.contracts.step import NewRequestData
from octavo.kernels.ops import Backend
from octavo.kernels.sampling_ops import SamplingRows
from octavo.sample.custom import BatchProcessor, RequestProcessors
from octavo.sample.forced_tokens import ForcedTokens
from octavo.sample.logit_ops import AllowedTokens, BadWords, GrammarMask, LogitBias, MinTokens
from octavo.sample.logits_processor import LogitsProcessor
from octavo.sample.logprobs import Logprobs
from octavo.sample.params_state import DrawParams
from octavo.sample.penalties import Penalties
from octavo.sample.stage import LogitsStage, SampleBatch

_LEAST_TEMPERATURE = np.float32(1e-30)
_NOT_FINITE = "the model's logits are not finite (NaN or infinity)"
NOTHING_LEFT = (
    "no token may come next: structured_outputs, allowed_token_ids, bad_words and min_tokens "
    "together exclude all"
)


class SampledRows(msgspec.Struct, frozen=True, kw_only=True):
    """What the logits rows of a step gave.

    Attributes:
        token_ids: [R]; no token's id where the row failed.
        failed: logits rows without a token, and why.
        logprobs: logits row → its log probabilities, where asked for.
    """

    token_ids: list[int]
    failed: dict[int, str] = {}
    logprobs: dict[int, LogprobRows] = {}


def merged_rows(parts: Sequence[SampledRows]) -> SampledRows:
    """The results of logits rows that were sampled in parts, in order; at least one."""
    if len(parts) == 1:
        return parts[0]
    token_ids: list[int] = []
    failed: dict[int, str] = {}
    logprobs: dict[int, LogprobRows] = {}
    for part in parts:
        start = len(token_ids)
        failed |= {start + row: why for row, why in part.failed.items()}
        logprobs |= {start + row: rows for row, rows in part.logprobs.items()}
        token_ids += part.token_ids
    return SampledRows(token_ids=token_ids, failed=failed, logprobs=logprobs)


class Sampler(RunnerFeature):
    """The stages in order.

    Attributes:
        is_idle: all requests in the batch take the best of the raw logits, and nothing more;
            where it is false, `needs_only_best` may still say so of a step.

    Args:
        num_rows: rows of the persistent batch.
        logprobs_mode: what log probabilities are reported: of the raw logits or of the processed
            ones, that the token was drawn from; or these logits themselves.
        logits_processors: the engine's, in this order.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        num_rows: int,
        vocab_size: int,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        logits_processors: Sequence[type[LogitsProcessor]] = (),
    ) -> None:
        self._backend = backend
        self._vocab_size = vocab_size
        self._is_raw = logprobs_mode.startswith("raw")
        self._is_normalized = logprobs_mode.endswith("logprobs")
        processors = [
            BatchProcessor(kind, num_rows=num_rows, vocab_size=vocab_size)
            for kind in logits_processors
        ]
        self._grammar_mask = GrammarMask()
        self._edits: tuple[LogitsStage, ...] = (
            AllowedTokens(num_rows, vocab_size),
            BadWords(num_rows),
            MinTokens(num_rows, vocab_size),
            LogitBias(num_rows),
            *(stage for stage in processors if not stage.is_argmax_invariant),
            RequestProcessors(num_rows),
            Penalties(num_rows),
            ForcedTokens(num_rows),
        )
        self._invariant = tuple(stage for stage in processors if stage.is_argmax_invariant)
        self._draws = DrawParams(num_rows)
        self._logprobs = Logprobs(num_rows, vocab_size)
        self._stages: tuple[RunnerFeature, ...] = (
            *(*self._edits, *self._invariant),
            *(self._draws, self._logprobs),
        )
        # Of the edits, those that some request in the batch needs.
        self._active: tuple[LogitsStage, ...] = ()
        self.is_idle = True

    def add_request(self, row: int, request: NewRequestData) -> None:
        for stage in self._stages:
            stage.add_request(row, request)

    def remove_request(self, row: int) -> None:
        for stage in self._stages:
            stage.remove_request(row)

    def apply_staged_writes(self) -> None:
        for stage in self._stages:
            stage.apply_staged_writes()
        self._active = tuple(stage for stage in self._edits if stage.is_needed)
        self.is_idle = not (self._active or self._draws.has_draws or self._logprobs.is_needed)

    def needs_only_best(self, batch: SampleBatch) -> bool:
        """Whether every row, grammars apart, takes the best of its logits as they are, and nobody
        asks for more."""
        return (
            self._draws.are_greedy(batch.rows)
            and self._logprobs.wanted(batch.rows) is None
            and all(stage.rows_to_edit(batch) is None for stage in self._active)
        )

    def take_best(self, array: Any) -> SampledRows:
        """What `sample` gives for rows that need only the best.

        Args:
            array: the back end's [R, 2] float32, token id and logit (`Ops.argmax`).
        """
        token_ids, logits = zip(*self._backend.to_numpy(array).tolist())
        failed: dict[int, str] = {}
        if not all(map(math.isfinite, logits)):
            failed = {row: _NOT_FINITE for row, x in enumerate(logits) if not math.isfinite(x)}
        return SampledRows(token_ids=list(map(int, token_ids)), failed=failed)

    def sample(self, logits: Any, batch: SampleBatch) -> SampledRows:
        """One token per logits row.

        Args:
            logits: the back end's array [R, vocab] float32; it is changed.
        """
        ops = self._backend.sampling
        wanted = self._logprobs.wanted(batch.rows)
        edits, late_edits = (
            [(s, edited) for s in stages if (edited := s.rows_to_edit(batch)) is not None]
            for stages in ((self._grammar_mask, *self._active), self._invariant)
        )
        raw = None
        if (edits or late_edits) and wanted is not None:
            raw = self._copy_raw(logits, wanted, [*edits, *late_edits])
        for stage, edited in edits:
            stage.apply(ops, logits, batch, edited)
        draws = self._draws.gather(batch.rows, batch.positions)
        if late_edits:
            self._edit_after_temperature(logits, batch, draws, late_edits)
        if batch.grammar is not None and any(
            isinstance(stage, (BatchProcessor, RequestProcessors))
            for stage, _ in (*edits, *late_edits)
        ):  # which may have made likely what the grammar forbids
            self._grammar_mask.apply(ops, logits, batch, batch.grammar.rows)
        token_ids = ops.sample(logits, draws)
        failed = self._failures(logits, token_ids) | batch.failed
        if wanted is None:
            return SampledRows(token_ids=token_ids.tolist(), failed=failed)
        wanted[list(failed)] = 0
        if raw is not None:
            logits[raw[0]] = raw[1]
        elif not self._is_raw:
            self._process(logits, draws, np.flatnonzero(wanted))
        logprobs = self._logprobs.gather(
            ops, logits, batch.rows, wanted, token_ids, self._is_normalized
        )
        return SampledRows(token_ids=token_ids.tolist(), failed=failed, logprobs=logprobs)

    def _copy_raw(
        self, logits: Any, wanted: np.ndarray, edits: list[tuple[LogitsStage, np.ndarray]]
    ) -> tuple[np.ndarray, Any] | None:
        """Rows whose raw logits are needed after they were edited: their indices, and a copy."""
        if not self._is_raw:
            return None
        is_edited = np.zeros(len(wanted), dtype=bool)
        for _, edited in edits:
            is_edited[edited] = True
        rows = np.flatnonzero(is_edited & (wanted > 0))
        return (rows, logits[rows]) if len(rows) else None

    def _edit_after_temperature(
        self,
        logits: Any,
        batch: SampleBatch,
        draws: SamplingRows,
        edits: list[tuple[LogitsStage, np.ndarray]],
    ) -> None:
        """Edit rows that are drawn, divided by their temperature, which is 1 from then on."""
        rows = np.unique(np.concatenate([edited for _, edited in edits]))
        array = np.asarray(logits)  # shares memory with a tensor
        array[rows] /= np.maximum(draws.temperature[rows], _LEAST_TEMPERATURE)[:, None]
        draws.temperature[rows] = 1.0
        for stage, edited in edits:
            stage.apply(self._backend.sampling, logits, batch, edited)

    def _process(self, logits: Any, draws: SamplingRows, rows: np.ndarray) -> None:
        """Turn logits rows into what their tokens were drawn from."""
        columns = {f.name: getattr(draws, f.name)[rows] for f in fields(draws)}
        self._backend.sampling.process(logits, rows.astype(np.int32), SamplingRows(**columns))

    def _failures(self, logits: Any, token_ids: np.ndarray) -> dict[int, str]:
        """Rows whose chosen logit is not finite. NaN spreads over the whole row (hidden states with
        a NaN give a row of NaN), so that the chosen one tells."""
        inside = np.clip(token_ids, 0, self._vocab_size - 1).astype(np.int64)
        chosen = self._backend.to_numpy(logits[np.arange(len(inside)), inside])
        good = np.isfinite(chosen) & (inside == token_ids)
        if good.all():
            return {}
        failed = {}
        for row in np.flatnonzero(~good).tolist():
            values = self._backend.to_numpy(logits[row])
            failed[row] = NOTHING_LEFT if (values == -np.inf).all() else _NOT_FINITE
        return failed
