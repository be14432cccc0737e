from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.worker.block_table import BlockTable

ROWS, BLOCKS = 3, 5
ids = st.lists(st.integers(1, 99), max_size=BLOCKS)
writes = st.tuples(st.booleans(), st.integers(0, ROWS - 1), ids)


@given(st.lists(st.lists(writes, max_size=4), max_size=5))
def test_rows_hold_what_was_staged_and_zeros(
    steps: list[list[tuple[bool, int, list[int]]]],
) -> None:
    table = BlockTable(ROWS, BLOCKS, 16)
    naive: list[list[int]] = [[] for _ in range(ROWS)]
    for staged in steps:
        for is_whole, row, block_ids in staged:
            if is_whole:
                table.stage_row(row, block_ids)
                naive[row] = list(block_ids)
            elif len(naive[row]) + len(block_ids) <= BLOCKS:
                table.stage_append(row, block_ids)
                naive[row] += block_ids
        table.apply_staged_writes()
        want = [row + [0] * (BLOCKS - len(row)) for row in naive]
        assert table.blocks.tolist() == want


def test_staged_ids_are_not_in_force_before_they_are_applied() -> None:
    table = BlockTable(1, 2, 16)
    table.stage_row(0, [7])
    assert table.blocks.tolist() == [[0, 0]]


def test_a_row_never_runs_over_into_the_next() -> None:
    table = BlockTable(2, 2, 16)
    table.stage_row(0, [1, 2])
    with pytest.raises(ValueError, match="3 blocks for one request; its longest table has 2"):
        table.stage_append(0, [3])
