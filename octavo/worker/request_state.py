"""The persistent batch: a row per running request, changed by diffs.

A request's row stays the same while it runs, so that everything kept per request (tokens, block
tables, sampling columns, feature state) is an array indexed by row. Writes are staged while the
diffs of a step are read and put in force in one go. Sampled tokens are written here by the runner
itself (`StepBatchBuilder.write_sampled`): the next step may be submitted before the scheduler knows
them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.contracts.step import CachedRequestData, NewRequestData
from octavo.errors import RequestError
from octavo.worker.block_table import BlockTable


class RequestState:
    """Rows of up to `max_num_seqs` requests.

    Attributes:
        rows: request id → row.
        token_ids: [max_num_seqs, max_model_len + 1] int32, prompt and output; the last column
            takes a token sampled at the very end. Pages are touched only where rows reach.
        num_tokens, num_prompt_tokens, num_computed_tokens: [max_num_seqs] int32.
        block_tables: one per KV group.

    Args:
        block_sizes: tokens per block, per KV group.
    """

    def __init__(
        self, *, max_num_seqs: int, max_model_len: int, vocab_size: int, block_sizes: Sequence[int]
    ) -> None:
        self.rows: dict[str, int] = {}
        self.token_ids = np.zeros((max_num_seqs, max_model_len + 1), dtype=np.int32)
        self.num_tokens = np.zeros(max_num_seqs, dtype=np.int32)
        self.num_prompt_tokens = np.zeros(max_num_seqs, dtype=np.int32)
        self.num_computed_tokens = np.zeros(max_num_seqs, dtype=np.int32)
        self.block_tables = [
            BlockTable(max_num_seqs, -(-max_model_len // size), size) for size in block_sizes
        ]
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._free_rows = list(reversed(range(max_num_seqs)))
        self._new: list[tuple[int, np.ndarray, int, int]] = []

    @staticmethod
    def nbytes(*, max_num_seqs: int, max_model_len: int, block_sizes: Sequence[int]) -> int:
        """Bytes that the arrays take once every row has been as long as can be."""
        columns = max_model_len + 1 + 3 + sum(-(-max_model_len // size) for size in block_sizes)
        return 4 * max_num_seqs * columns

    def add_request(self, request: NewRequestData) -> int:
        """Give the request a row. Nothing is staged if it is refused.

        Raises:
            RequestError: its tokens cannot be those of a request of this model.
        """
        if request.request_id in self.rows:
            raise ValueError(f"request {request.request_id!r} is in the batch already")
        lengths = [len(ids) for ids in request.block_ids]
        limits = [table.max_blocks for table in self.block_tables]
        if len(lengths) != len(limits) or any(n > limit for n, limit in zip(lengths, limits)):
            raise ValueError(f"{lengths} blocks in KV groups that take {limits}")
        token_ids = self._checked_tokens(request.token_ids)
        if not self._free_rows:
            raise ValueError(f"all {len(self.rows)} rows of the batch are taken")
        row = self._free_rows.pop()
        self.rows[request.request_id] = row
        self._new.append((row, token_ids, request.num_prompt_tokens, request.num_computed_tokens))
        for table, block_ids in zip(self.block_tables, request.block_ids):
            table.stage_row(row, block_ids)
        return row

    def remove_request(self, request_id: str) -> int | None:
        """Free the row of a request. Returns it, or None where the request has none."""
        row = self.rows.pop(request_id, None)
        if row is not None:
            self._free_rows.append(row)
        return row

    def update_requests(self, cached: CachedRequestData) -> None:
        """Stage the diffs of known requests; those that left the batch are passed over. Counts are
        written at once: no one reads them before the diffs are in force, and to stage them would
        take longer."""
        rows, num_computed_tokens = self.rows, self.num_computed_tokens
        for request_id, count in zip(cached.request_ids, cached.num_computed_tokens):
            if request_id in rows:
                num_computed_tokens[rows[request_id]] = count
        for request_id, new_block_ids in cached.new_block_ids.items():
            if request_id in rows:
                for table, block_ids in zip(self.block_tables, new_block_ids):
                    table.stage_append(rows[request_id], block_ids)

    def apply_staged_writes(self) -> None:
        """Put all staged changes in force."""
        for row, token_ids, num_prompt_tokens, num_computed_tokens in self._new:
            self.token_ids[row, : len(token_ids)] = token_ids
            self.num_tokens[row] = len(token_ids)
            self.num_prompt_tokens[row] = num_prompt_tokens
            self.num_computed_tokens[row] = num_computed_tokens
        self._new.clear()
        for table in self.block_tables:
            table.apply_staged_writes()

    def write_drafts(self, request_id: str, position: int, token_ids: Sequence[int]) -> None:
        """Put drafts where the tokens will be that they guess. They are not counted."""
        row = self.rows[request_id]
        self.token_ids[row, position : position + len(token_ids)] = token_ids

    def truncate(self, request_id: str, num_tokens: int) -> None:
        """Keep only the first `num_tokens` tokens: the rest were sampled after a rejected draft."""
        self.num_tokens[self.rows[request_id]] = num_tokens

    def _checked_tokens(self, token_ids: Sequence[int]) -> np.ndarray:
        if not 1 <= len(token_ids) <= self._max_model_len:
            raise RequestError(
                f"{len(token_ids)} tokens; a request has 1…{self._max_model_len}",
                param="prompt_token_ids",
            )
        checked = np.array(token_ids, dtype=np.int64)
        low, high = int(checked.min()), int(checked.max())
        if low < 0 or high >= self._vocab_size:
            raise RequestError(
                f"token id {low if low < 0 else high} is not in the vocabulary; the model's ids "
                f"are 0…{self._vocab_size - 1}",
                param="prompt_token_ids",
            )
        return checked.astype(np.int32)
