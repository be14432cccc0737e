"""Block tables of the persistent batch: which pages hold a row's tokens, for one KV group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class BlockTable:
    """Appends are staged and applied at once.

    Attributes:
        blocks: [num_rows, max_blocks] int32, 0 past a row's end.

    Args:
        num_rows: rows of the persistent batch.
        max_blocks: blocks of the longest request.
        block_size: tokens per block.
    """

    def __init__(self, num_rows: int, max_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.max_blocks = max_blocks
        self.blocks = np.zeros((num_rows, max_blocks), dtype=np.int32)
        self._flat = self.blocks.reshape(-1)
        # Ends of the rows with all that is staged. A free row keeps its end until it is reused,
        # so that `stage_row` knows what to overwrite.
        self._ends = [0] * num_rows
        self._staged_index: list[int] = []
        self._staged_ids: list[int] = []

    def stage_row(self, row: int, block_ids: Sequence[int]) -> None:
        """Make `block_ids` the whole table of `row`."""
        padding = [0] * (self._ends[row] - len(block_ids))
        self._ends[row] = 0
        self.stage_append(row, [*block_ids, *padding])
        self._ends[row] = len(block_ids)

    def stage_append(self, row: int, block_ids: Sequence[int]) -> None:
        """Append `block_ids` to the table of `row`."""
        start, end = self._ends[row], self._ends[row] + len(block_ids)
        if end > self.max_blocks:
            raise ValueError(
                f"{end} blocks for one request; its longest table has {self.max_blocks}"
            )
        first = row * self.max_blocks
        self._staged_index.extend(range(first + start, first + end))
        self._staged_ids.extend(block_ids)
        self._ends[row] = end

    def apply_staged_writes(self) -> None:
        """Put the staged ids in force; where an entry was staged twice the later one holds."""
        if self._staged_index:
            self._flat[self._staged_index] = self._staged_ids
            self._staged_index.clear()
            self._staged_ids.clear()
