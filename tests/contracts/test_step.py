"""The step contract crosses a process boundary whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.contracts.codec import Decoder, Encoder
from octavo.contracts.kv_spec import BlockCopy
from octavo.contracts.messages import LogprobRows
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.step import (
    CachedRequestData,
    GrammarOutput,
    NewRequestData,
    RunnerOutput,
    SchedulerOutput,
)


def through(message: Any) -> Any:
    return Decoder(type(message)).decode(Encoder().encode(message))


STEP = SchedulerOutput(
    step_id=7,
    new_requests=[
        NewRequestData(
            request_id="new",
            token_ids=[1, 2, 3],
            num_prompt_tokens=2,
            block_ids=([4, 5], [6]),
            num_computed_tokens=1,
            sampling_params=SamplingParams(seed=1),
            stop_ids=[2],
        ),
        NewRequestData(
            request_id="pool",
            token_ids=[1],
            num_prompt_tokens=1,
            block_ids=([7], [8]),
            num_computed_tokens=0,
            pooling_params=PoolingParams(),
        ),
    ],
    cached_requests=CachedRequestData(
        request_ids=["old", "older"],
        num_computed_tokens=[17, 40],
        new_block_ids={"old": ([9], [])},
    ),
    num_scheduled_tokens={"older": 1, "old": 3, "new": 2},
    total_num_scheduled_tokens=6,
    scheduled_drafts={"old": [5, 6]},
    samples=["older"],
    finished_request_ids=["gone"],
    preempted_request_ids=["lost"],
    block_copies=[BlockCopy(src=1, dst=2)],
    blocks_to_clear=[3],
)


def test_a_step_comes_back_equal_and_in_order() -> None:
    back = through(STEP)
    assert back == STEP
    assert list(back.num_scheduled_tokens) == ["older", "old", "new"]


def test_an_empty_step_comes_back_equal() -> None:
    assert through(SchedulerOutput(step_id=0)) == SchedulerOutput(step_id=0)


def test_results_come_back() -> None:
    rows = LogprobRows(
        token_ids=np.array([[1, 2]], np.int32),
        logprobs=np.array([[-1, -2]], np.float32),
        ranks=np.array([1], np.int32),
    )
    output = RunnerOutput(
        step_id=7,
        request_ids=["a", "b"],
        sampled_token_ids=[[1], []],
        logprobs={"a": rows},
        pooler_outputs={"b": np.ones(3, np.float32)},
        errors={"b": "overflow"},
    )
    back = through(output)
    assert (back.request_ids, back.sampled_token_ids) == (["a", "b"], [[1], []])
    assert back.errors == output.errors
    np.testing.assert_array_equal(back.logprobs["a"].logprobs, rows.logprobs)
    np.testing.assert_array_equal(back.pooler_outputs["b"], np.ones(3))


def test_a_mask_comes_back() -> None:
    mask = GrammarOutput(request_ids=["a"], bitmask=np.array([[-1, 3]], np.int32))
    np.testing.assert_array_equal(through(mask).bitmask, mask.bitmask)


@pytest.mark.parametrize("kind", [SchedulerOutput, RunnerOutput])
def test_defaults_are_not_shared(kind: Any) -> None:
    a, b = kind(step_id=0), kind(step_id=0)
    for name in a.__struct_fields__:
        value = getattr(a, name)
        if isinstance(value, (list, dict)):
            assert value is not getattr(b, name), name
