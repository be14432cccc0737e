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
        self._k_plus_1.stage(row, 1 + _num_alternatives(k, self._vocab_size))
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
        ops: SamplingOps, logits: Any, wanted: np.ndarray, token_ids: np.ndarray, normalized: bool
    ) -> dict[int, LogprobRows]:
        """Logits row → its log probabilities (one row each), for all rows where wanted > 0; the
        logits themselves if not `normalized`."""
        gathered: dict[int, LogprobRows] = {}
        for width in np.unique(wanted[wanted > 0]).tolist():
            rows = np.flatnonzero(wanted == width).astype(np.int32)
            ids, logprobs, ranks = ops.logprobs(
                logits, rows, token_ids[rows], width - 1, normalized=normalized
            )
            for i, row in enumerate(rows.tolist()):
                one = slice(i, i + 1)
                gathered[row] = LogprobRows(ids[one], logprobs[one], ranks[one])
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

    def add_request(self, row: int, request: NewRequestData) -> None:
        k = sampling_params_of(request).prompt_logprobs
        if k is not None:
            self._ks.put(row, _num_alternatives(k, self._vocab_size))

    def remove_request(self, row: int) -> None:
        self._ks.drop(row)

    def find(self, rows: np.ndarray) -> np.ndarray | None:
        """Indices into `rows` [B] of the requests that ask; None where none does."""
        return self._ks.find(rows)

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
        ks = self._ks.of(rows[[chunk.index for chunk in chunks]])
        gathered: dict[int, LogprobRows] = {}
        for k in set(ks):
            alike = [chunk for chunk, its_k in zip(chunks, ks) if its_k == k]
            result = self._compute(
                hidden_states,
                np.concatenate([chunk.token_rows for chunk in alike]),
                np.concatenate([chunk.next_ids for chunk in alike]),
                k,
            )
            start = 0
            for chunk in alike:
                part = slice(start, start + len(chunk.token_rows))
                gathered[chunk.index] = LogprobRows(*(array[part] for array in result))
                start = part.stop
        return gathered

    def _compute(
        self, hidden_states: Any, token_rows: np.ndarray, next_ids: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """ids and values [n, 1 + k], ranks [n] (`SamplingOps.logprobs`), block by block."""
        n = len(token_rows)
        ids = np.empty((n, 1 + k), dtype=np.int32)
        values = np.empty((n, 1 + k), dtype=np.float32)
        ranks = np.empty(n, dtype=np.int32)
        for start in range(0, n, _HEAD_ROWS):
            part = slice(start, min(start + _HEAD_ROWS, n))
            x = self._backend.to_numpy(hidden_states[token_rows[part]])
            inputs = head_inputs(x)
            inputs.outputs = ["logits"]
            logits = self._head.replay(inputs)["logits"]
            ids[part], values[part], ranks[part] = self._backend.sampling.logprobs(
                logits, np.arange(len(x), dtype=np.int32), next_ids[part], k
            )
        return ids, values, ranks


def _num_alternatives(k: int, vocab_size: int) -> int:
    return vocab_size if k == -1 else min(k, vocab_size)


def head_inputs(hidden_states: np.ndarray) -> StepInputs:
    """A step of one request whose tokens are the rows [n, D]."""
    n = len(hidden_states)
    counting = np.arange(n, dtype=np.int32)
    return StepInputs(
        token_ids=np.zeros(n, dtype=np.int32),
        positions=counting,
        query_start=np.array([0, n], dtype=np.int32),
        seq_lens=np.array([n], dtype=np.int32),
        block_tables=[],
        slot_mapping=[],
        logit_rows=counting,
        extra={"hidden_states": hidden_states},
    )
