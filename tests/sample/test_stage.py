from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from octavo.sample.stage import RequestRows

steps = st.lists(st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers())), max_size=20)


@given(steps, st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_states_by_row(changes: list[tuple[int, int | None]], asked: list[int]) -> None:
    rows, naive = RequestRows[int](5), dict[int, int]()
    for row, state in changes:
        if state is None:
            rows.drop(row)
            naive.pop(row, None)
        else:
            rows.put(row, state)
            naive[row] = state
        found = rows.find(np.array(asked))
        expected = [i for i, row in enumerate(asked) if row in naive]
        assert (found.tolist() if found is not None else []) == expected
        if found is not None:
            assert rows.of(np.array(asked)[found]) == [naive[asked[i]] for i in expected]
