"""A step's arrays, gathered from those of the persistent batch in one native call.

Between two forwards all caches are cold, because the weights have just gone through them: what
counts then is how many different things a step touches, and every numpy call on a few elements
touches hundreds of lines of code and data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo import _cpu
from octavo.kernels.ops import StepInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredStep:
    """The arrays of a step of B requests with R logits rows.

    Attributes:
        inputs: what a graph replays.
        rows: [B] int64, row of the persistent batch.
        logit_rows_of_state: [R] int64, row of the persistent batch.
        logit_offsets: [R] int32, drafts of the same request before the token that the row samples.
        logit_positions: [R] int32, absolute position of that token.
    """

    inputs: StepInputs
    rows: np.ndarray
    logit_rows_of_state: np.ndarray
    logit_offsets: np.ndarray
    logit_positions: np.ndarray


class StepGather:
    """Gathers steps. The arrays of a step are valid until the next one; steps of equal sizes are
    given in the very same objects, so that who reads them need not look at them anew.

    Args:
        token_ids: [N, L] int32, the persistent batch: the tokens of N rows.
        num_tokens, num_computed_tokens: [N] int32, how many are known and have their KV stored.
        block_tables: per KV group [N, max blocks] int32.
        block_sizes: tokens per block, per KV group.
        max_tokens, max_requests: of a step.
    """

    def __init__(
        self,
        *,
        token_ids: np.ndarray,
        num_tokens: np.ndarray,
        num_computed_tokens: np.ndarray,
        block_tables: Sequence[np.ndarray],
        block_sizes: Sequence[int],
        max_tokens: int,
        max_requests: int,
    ) -> None:
        self._block_sizes = tuple(block_sizes)
        # token_ids, positions, logit_rows, logit_offsets, logit_positions
        self._of_tokens = [np.zeros(max_tokens, dtype=np.int32) for _ in range(5)]
        self._query_start = np.zeros(max_requests + 1, dtype=np.int32)
        self._seq_lens = np.zeros(max_requests, dtype=np.int32)
        self._rows = np.zeros(max_requests, dtype=np.int64)
        self._logit_rows_of_state = np.zeros(max_tokens, dtype=np.int64)
        self._tables = [
            np.zeros(max_requests * table.shape[1], dtype=np.int32) for table in block_tables
        ]
        self._slots = [np.zeros(max_tokens, dtype=np.int32) for _ in block_tables]
        self._native = _cpu.StepGather(
            token_ids,
            num_tokens,
            num_computed_tokens,
            list(block_tables),
            list(block_sizes),
            max_tokens,
            max_requests,
            self._of_tokens,
            [self._query_start, self._seq_lens],
            self._rows,
            self._logit_rows_of_state,
            self._tables,
            self._slots,
        )
        self._sizes: tuple[int, ...] = ()
        self._step: GatheredStep | None = None

    def gather(
        self, rows: Sequence[int], counts: Sequence[int], num_logits: Sequence[int]
    ) -> GatheredStep:
        """The step of the requests in `rows`, in this order.

        Args:
            counts: tokens of each, from num_computed_tokens on; at least 1.
            num_logits: logits rows of each, for its last tokens; all of these but the first are
                drafts, which stand in `token_ids` and are not counted in `num_tokens`.

        Raises:
            KernelError: more than there is room for, or a token that is not known.
        """
        num_tokens, num_logit_rows, longest = self._native.gather(rows, counts, num_logits)
        widths = [-(-longest // size) for size in self._block_sizes]
        sizes = (len(rows), num_tokens, num_logit_rows, *widths)
        if self._step is None or sizes != self._sizes:
            self._step = self._views(len(rows), num_tokens, num_logit_rows, widths)
            self._sizes = sizes
        return self._step

    def write_sampled(self, token_ids: Sequence[int]) -> None:
        """Keep what the logits rows of the last step sampled, one token each: the last one of a
        request is then its last known token. Raises KernelError."""
        self._native.write_sampled(token_ids)

    def _views(
        self, num_requests: int, num_tokens: int, num_logit_rows: int, widths: Sequence[int]
    ) -> GatheredStep:
        token_ids, positions, logit_rows, logit_offsets, logit_positions = self._of_tokens
        return GatheredStep(
            inputs=StepInputs(
                token_ids=token_ids[:num_tokens],
                positions=positions[:num_tokens],
                query_start=self._query_start[: num_requests + 1],
                seq_lens=self._seq_lens[:num_requests],
                block_tables=[
                    table[: num_requests * width].reshape(num_requests, width)
                    for table, width in zip(self._tables, widths)
                ],
                slot_mapping=[slots[:num_tokens] for slots in self._slots],
                logit_rows=logit_rows[:num_logit_rows],
            ),
            rows=self._rows[:num_requests],
            logit_rows_of_state=self._logit_rows_of_state[:num_logit_rows],
            logit_offsets=logit_offsets[:num_logit_rows],
            logit_positions=logit_positions[:num_logit_rows],
        )
