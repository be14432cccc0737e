"""Log probabilities of sampled tokens and of tokens of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.contracts.features import RunnerFeature
from octavo.contracts.messages import LogprobRows
from octavo.contracts.step import NewRequestData
from octavo.kernels.ops import Backend, Graph, StepInputs, StepLimits
from octavo.kernels.sampling_ops import SamplingOps
from octavo.sample.params_state import StagedColumns, sampling_params_of
from octavo.sample.stage import RequestRows

_HEAD_ROWS = 64

HEAD_LIMITS = StepLimits(
    max_tokens=_HEAD_ROWS,
    max_requests=1,
    max_logit_rows=_HEAD_ROWS,
    max_blocks_per_request=1,
    max_position=_HEAD_ROWS,
)
"""What a model's `head` is captured for. Prompts, and the rows of large steps, go through it in
parts: their logits take no more than those of so many rows."""


class Logprobs(RunnerFeature):
    """Log probabilities of the sampled token, of the k most likely, and of listed ones."""

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._k_plus_1 = StagedColumns(num_rows, np.int32)  # 0: not asked for
        self._rows: set[int] = set()
        self._listed = RequestRows[np.ndarray](num_rows)  # logprob_token_ids, [m] int32

    def add_request(self, row: int, request: NewRequestData) -> None:
        params = sampling_params_of(request)
        k = params.logprobs
        if k is None:
            self._k_plus_1.stage(row, 0)
            return
        if params.logprob_token_ids:
            self._listed.put(row, np.array(params.logprob_token_ids, dtype=np.int32))
        self._k_plus_1.stage(row, 1 + _num_alternatives(k, self._vocab_size))
        self._rows.add(row)

    def remove_request(self, row: int) -> None:
        self._rows.discard(row)
        self._listed.drop(row)

    def apply_staged_writes(self) -> None:
        self._k_plus_1.apply()

    @property
    def is_needed(self) -> bool:
        """Whether any row has asked."""
        return bool(self._rows)

    def wanted(self, rows: np.ndarray) -> np.ndarray | None:
        """1 + k per logits row, 0 where not asked for: [R]; None where nothing is."""
        if not self._rows:
            return None
        wanted = self._k_plus_1.columns[0][rows]
        return wanted if wanted.any() else None

    def gather(
        self,
        ops: SamplingOps,
        logits: Any,
        batch_rows: np.ndarray,
        wanted: np.ndarray,
        token_ids: np.ndarray,
        normalized: bool,
    ) -> dict[int, LogprobRows]:
        """Logits row → its log probabilities (one row each), for all rows where wanted > 0; the
        logits themselves if not `normalized`.

        Args:
            batch_rows: [R] row of the persistent batch.
        """
        gathered: dict[int, LogprobRows] = {}
        for width in np.unique(wanted[wanted > 0]).tolist():
            rows = np.flatnonzero(wanted == width).astype(np.int32)
            ids, logprobs, ranks = ops.logprobs(
                logits, rows, token_ids[rows], width - 1, normalized=normalized
            )
            for i, row in enumerate(rows.tolist()):
                one = slice(i, i + 1)
                gathered[row] = LogprobRows(ids[one], logprobs[one], ranks[one])
        found = self._listed.find(batch_rows)
        if found is not None:
            for row, listed in zip(found.tolist(), self._listed.of(batch_rows[found])):
                if row in gathered:
                    here = np.array([row])
                    gathered[row] = _with_listed(
                        ops, logits, gathered[row], here, listed, normalized=normalized
                    )
        return gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChunk:
    """Tokens of a request's prompt in a step, each of which another one follows.

    Attributes:
        index: the request's, in the step's batch.
        token_rows: [n] rows among the step's tokens.
        next_ids: [n] int32, the tokens that follow them.
    """

    index: int
    token_rows: np.ndarray
    next_ids: np.ndarray


class PromptLogprobs(RunnerFeature):
    """Log probabilities of the prompt's tokens, of the raw distribution.

    Args:
        head: the model's `head`, captured for `HEAD_LIMITS`.
    """

    def __init__(self, backend: Backend, head: Graph, *, num_rows: int, vocab_size: int) -> None:
        self._backend = backend
        self._head = head
        self._vocab_size = vocab_size
        self._ks = RequestRows[int](num_rows)
        self._listed = RequestRows[np.ndarray](num_rows)  # prompt_logprob_token_ids, [m] int32
        self._first = np.zeros(num_rows, dtype=np.int64)

    def add_request(self, row: int, request: NewRequestData) -> None:
        params = sampling_params_of(request)
        if params.prompt_logprobs is None:
            return
        self._ks.put(row, _num_alternatives(params.prompt_logprobs, self._vocab_size))
        self._first[row] = max(1, params.prompt_logprob_start)
        if params.prompt_logprob_token_ids:
            self._listed.put(row, np.array(params.prompt_logprob_token_ids, dtype=np.int32))

    def remove_request(self, row: int) -> None:
        self._ks.drop(row)
        self._listed.drop(row)

    @property
    def is_needed(self) -> bool:
        """Whether any row has asked."""
        return bool(self._ks)

    def find(self, rows: np.ndarray) -> np.ndarray | None:
        """Indices into `rows` [B] of the requests that ask; None where none does."""
        return self._ks.find(rows)

    def first_position(self, row: int) -> int:
        """The first prompt token of a request that asks, whose log probabilities are wanted."""
        return int(self._first[row])

    def gather(
        self, hidden_states: Any, rows: np.ndarray, chunks: Sequence[PromptChunk]
    ) -> dict[int, LogprobRows]:
        """The log probabilities of a step's prompt tokens.

        Args:
            hidden_states: the back end's array [T, D], the forward's tap.
            rows: [B] row of the persistent batch of each of the step's requests.
            chunks: of requests that ask.

        Returns:
            Index of the request → a row per token of its chunk, about the one that follows.
        """
        asked = rows[[chunk.index for chunk in chunks]]
        listed = [self._listed.get(row) for row in asked.tolist()]
        ks = self._ks.of(asked)
        gathered: dict[int, LogprobRows] = {}
        # Those that ask for the same are computed together, those with lists of ids alone.
        for chunk, ids, k in zip(chunks, listed, ks):
            if ids is not None:
                parts = (chunk.token_rows, chunk.next_ids)
                gathered[chunk.index] = self._compute(hidden_states, *parts, k, ids)
        for k in set(ks):
            alike = [c for c, ids, its_k in zip(chunks, listed, ks) if its_k == k and ids is None]
            if not alike:
                continue
            result = self._compute(
                hidden_states,
                np.concatenate([chunk.token_rows for chunk in alike]),
                np.concatenate([chunk.next_ids for chunk in alike]),
                k,
            )
            start = 0
            for chunk in alike:
                part = slice(start, start + len(chunk.token_rows))
                gathered[chunk.index] = LogprobRows(
                    result.token_ids[part], result.logprobs[part], result.ranks[part]
                )
                start = part.stop
        return gathered

    def _compute(
        self,
        hidden_states: Any,
        token_rows: np.ndarray,
        next_ids: np.ndarray,
        k: int,
        listed: np.ndarray | None = None,
    ) -> LogprobRows:
        """n rows, block by block (`SamplingOps.logprobs`), those of `listed` ids at the end."""
        ops = self._backend.sampling
        parts = []
        for start in range(0, len(token_rows), _HEAD_ROWS):
            part = slice(start, start + _HEAD_ROWS)
            x = self._backend.to_numpy(hidden_states[token_rows[part]])
            inputs = StepInputs.of_rows(len(x), {"hidden_states": x})
            inputs.outputs = ["logits"]
            logits = self._head.replay(inputs)["logits"]
            rows = np.arange(len(x), dtype=np.int32)
            block = LogprobRows(*ops.logprobs(logits, rows, next_ids[part], k))
            if listed is not None:
                block = _with_listed(ops, logits, block, rows, listed)
            parts.append(block)
        return LogprobRows(
            np.concatenate([block.token_ids for block in parts]),
            np.concatenate([block.logprobs for block in parts]),
            np.concatenate([block.ranks for block in parts]),
        )


def _with_listed(
    ops: SamplingOps,
    logits: Any,
    rows: LogprobRows,
    logits_rows: np.ndarray,
    listed: np.ndarray,
    *,
    normalized: bool = True,
) -> LogprobRows:
    """`rows` [n, 1 + k], about logits_rows [n], with columns for the ids `listed` [m]."""
    n, m = len(logits_rows), len(listed)
    ids = np.tile(listed, n)
    where = np.repeat(logits_rows, m).astype(np.int32)
    _, values, _ = ops.logprobs(logits, where, ids, 0, normalized=normalized)
    return LogprobRows(
        np.concatenate([rows.token_ids, ids.reshape(n, m)], axis=1),
        np.concatenate([rows.logprobs, values.reshape(n, m)], axis=1),
        rows.ranks,
    )


def _num_alternatives(k: int, vocab_size: int) -> int:
    return vocab_size if k == -1 else min(k, vocab_size)
