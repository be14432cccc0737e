"""Steps gathered natively; that they equal steps built with loops is tested in tests/worker."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import KernelError
from octavo.kernels.step_gather import StepGather

ROWS, LENGTH, BLOCKS = 4, 64, 4


class Batch:
    """A persistent batch whose every row has `known` tokens, and one KV group per block size."""

    def __init__(self, known: int, *block_sizes: int, max_tokens: int = 80) -> None:
        self.token_ids = np.arange(ROWS * LENGTH, dtype=np.int32).reshape(ROWS, LENGTH)
        self.num_tokens = np.full(ROWS, known, dtype=np.int32)
        self.num_computed_tokens = np.zeros(ROWS, dtype=np.int32)
        self.block_tables = [
            100 * i + np.arange(1, 1 + ROWS * BLOCKS, dtype=np.int32).reshape(ROWS, BLOCKS)
            for i in range(len(block_sizes))
        ]
        self.gather = StepGather(
            token_ids=self.token_ids,
            num_tokens=self.num_tokens,
            num_computed_tokens=self.num_computed_tokens,
            block_tables=self.block_tables,
            block_sizes=block_sizes,
            max_tokens=max_tokens,
            max_requests=ROWS,
        )


def test_block_tables_are_as_wide_as_the_longest_request_needs() -> None:
    batch = Batch(40, 16, 32)
    inputs = batch.gather.gather([3, 1], [17, 2], [0, 0]).inputs
    assert [t.tolist() for t in inputs.block_tables] == [[[13, 14], [5, 6]], [[113], [105]]]
    assert all(t.flags.c_contiguous for t in inputs.block_tables)


@given(st.lists(st.integers(1, 2**20), min_size=BLOCKS, max_size=BLOCKS), st.integers(0, 63))
def test_slots(block_ids: list[int], position: int) -> None:
    batch = Batch(LENGTH, 16)
    batch.block_tables[0][1] = block_ids
    batch.num_computed_tokens[1] = position
    slots = batch.gather.gather([1], [1], [1]).inputs.slot_mapping[0]
    assert slots.tolist() == [block_ids[position // 16] * 16 + position % 16]


def test_steps_of_equal_sizes_come_in_the_same_arrays() -> None:
    batch = Batch(40, 16)
    first = batch.gather.gather([0, 1], [1, 1], [1, 1])
    batch.num_computed_tokens[:] = 9
    again = batch.gather.gather([2, 1], [1, 1], [1, 1])
    assert again is first
    assert again.inputs.positions.tolist() == [9, 9]
    assert again.inputs.token_ids.tolist() == [2 * LENGTH + 9, LENGTH + 9]
    assert again.inputs.block_tables[0].tolist() == [[9], [5]]
    for counts, num_logits in (([2, 1], [1, 1]), ([1, 1], [0, 1]), ([8, 1], [1, 1])):
        other = batch.gather.gather([2, 1], counts, num_logits)
        assert len(other.inputs.token_ids) == sum(counts)
        assert len(other.inputs.logit_rows) == sum(num_logits)


@pytest.mark.parametrize(
    ("rows", "counts", "num_logits", "says"),
    [
        ([4], [1], [1], "no such row"),
        ([-1], [1], [1], "no such row"),
        ([0], [0], [0], "tokens"),
        ([0], [81], [1], "too many tokens"),
        ([0, 1], [40, 41], [1, 1], "too many tokens"),
        ([0, 1, 2, 3, 0], [1] * 5, [1] * 5, "too many requests"),
        ([0], [1], [2], "more logits rows than tokens"),
        ([0], [41], [1], "scheduled but not known"),
        ([0], [42], [2], "scheduled but not known"),
        ([0], [65], [26], "more tokens than a row holds"),
        ([0], [1, 1], [1], "one length"),
    ],
)
def test_what_does_not_fit_is_refused(
    rows: list[int], counts: list[int], num_logits: list[int], says: str
) -> None:
    batch = Batch(40, 16)
    with pytest.raises(KernelError, match=says):
        batch.gather.gather(rows, counts, num_logits)
    with pytest.raises(KernelError, match="one token per logits row"):  # there is no such step
        batch.gather.write_sampled([1])
    assert len(batch.gather.gather([0], [40], [1]).inputs.token_ids) == 40


def test_a_request_longer_than_its_block_table_is_refused() -> None:
    batch = Batch(LENGTH, 8)
    with pytest.raises(KernelError, match="longer than its block table"):
        batch.gather.gather([0], [33], [0])


def test_drafts_are_not_counted_as_known() -> None:
    batch = Batch(40, 16)
    batch.num_computed_tokens[:] = 39
    step = batch.gather.gather([2], [3], [3])
    assert step.logit_positions.tolist() == [40, 41, 42]
    assert step.logit_offsets.tolist() == [0, 1, 2]
    batch.gather.write_sampled([7, 8, 9])
    assert batch.token_ids[2, 40:43].tolist() == [7, 8, 9]
    assert batch.num_tokens.tolist() == [40, 40, 43, 40]
