from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.step import NewRequestData
from octavo.errors import RequestError
from octavo.sample.params_state import DrawParams, StagedColumns


def new(params: SamplingParams | None, **more: object) -> NewRequestData:
    return NewRequestData(
        request_id="r",
        token_ids=[1, 2],
        num_prompt_tokens=2,
        block_ids=([1],),
        num_computed_tokens=0,
        sampling_params=params,
        **more,  # type: ignore[arg-type]
    )


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=5)))
def test_columns_hold_the_last_staged_value(steps: list[list[tuple[int, int]]]) -> None:
    state = StagedColumns(4, np.uint64, np.int32)
    naive = [0] * 4
    for staged in steps:
        for row, value in staged:
            state.stage(row, value, row)
        assert state.columns[0].tolist() == naive
        state.apply()
        for row, value in staged:
            naive[row] = value
        assert state.columns[0].tolist() == naive


def test_draw_params_by_row() -> None:
    draws = DrawParams(3)
    draws.add_request(
        2,
        new(
            SamplingParams(temperature=0.5, top_k=7, top_p=0.25, min_p=0.125, seed=-1 - 2**62),
            sample_index=3,
        ),
    )
    draws.add_request(0, new(SamplingParams(temperature=0.0)))
    draws.apply_staged_writes()
    rows = draws.gather(np.array([2, 0, 2]), np.array([10, 11, 12]))
    assert rows.temperature.tolist() == [0.5, 0.0, 0.5]
    assert rows.top_k.tolist() == [7, 0, 7]
    assert rows.top_p.tolist() == [0.25, 1.0, 0.25]
    assert rows.min_p.tolist() == [0.125, 0.0, 0.125]
    assert rows.seed.tolist() == [2**64 - 1 - 2**62, 0, 2**64 - 1 - 2**62]
    assert rows.sample_index.tolist() == [3, 0, 3]
    assert rows.position.tolist() == [10, 11, 12]
    dtypes = [rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.seed, rows.sample_index]
    assert [c.dtype.name for c in [*dtypes, rows.position]] == [
        "float32", "int32", "float32", "float32", "uint64", "int32", "int32",
    ]  # fmt: skip


def test_every_parameter_of_a_row_is_replaced_with_its_request() -> None:
    draws = DrawParams(1)
    draws.add_request(0, new(SamplingParams(top_k=5, top_p=0.5, min_p=0.5, seed=9), sample_index=2))
    draws.apply_staged_writes()
    draws.remove_request(0)
    draws.add_request(0, new(SamplingParams(seed=1)))
    draws.apply_staged_writes()
    rows = draws.gather(np.array([0]), np.array([0]))
    values = (rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.seed, rows.sample_index)
    assert [v[0] for v in values] == [1, 0, 1, 0, 1, 0]


def test_requests_that_cannot_be_drawn_for() -> None:
    draws = DrawParams(1)
    with pytest.raises(RequestError, match="needs sampling_params"):
        draws.add_request(0, new(None))
    with pytest.raises(RequestError, match="seed"):
        draws.add_request(0, new(SamplingParams(temperature=1.0)))
