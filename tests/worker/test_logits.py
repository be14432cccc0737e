"""The logits of a step's rows, in the forward and in parts behind it."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.step import NewRequestData, SchedulerOutput
from octavo.sample.logprobs import HEAD_LIMITS
from tests.worker.toy import (
    BLOCK,
    GREEDY,
    ToyRequest,
    check,
    generate_alone,
    make_toy,
    run_to_end,
)


@pytest.mark.parametrize("max_logit_rows", [1, 3, 64])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0, seed=5, logprobs=2)])
def test_parts_give_the_same(max_logit_rows: int, params: SamplingParams) -> None:
    """Of a step with more logits rows than the forward's buffers hold."""
    toy = make_toy(max_num_seqs=6, max_logit_rows=max_logit_rows)
    requests = [ToyRequest(f"r{i}", [i + 1, 2, 3], params) for i in range(6)]
    run_to_end(toy, requests, 5)
    for request in requests:
        check(request)


def test_the_best_is_enough_where_all_rows_are_greedy() -> None:
    """Not where one of them is not, or asks for log probabilities, or is edited."""
    for other, tap in (
        (GREEDY, "argmax"),
        (SamplingParams(temperature=0.5, seed=1), "logits"),
        (SamplingParams(temperature=0.0, seed=1, logprobs=0), "logits"),
        (SamplingParams(temperature=0.0, seed=1, logit_bias={3: 1.0}), "logits"),
    ):
        toy = make_toy(max_num_seqs=2)
        requests = [ToyRequest("a", [1, 2], GREEDY), ToyRequest("b", [2, 3], other)]
        run_to_end(toy, requests, 4)
        assert {tuple(step.outputs or ()) for step in toy.graph.steps} == {(tap,)}
        for request in requests:
            check(request)


@pytest.mark.parametrize("num_right", [0, 62, 63, 64, 79, 80])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, seed=3, logprobs=2),
        SamplingParams(temperature=0.0, repetition_penalty=1.2, frequency_penalty=0.3, logprobs=0),
    ],
)
def test_rows_of_one_request_in_several_parts(params: SamplingParams, num_right: int) -> None:
    """80 drafts and one more, behind another request's row: a part begins amid them."""
    prompt, num_drafts = list(range(10)), 80
    assert num_drafts > HEAD_LIMITS.max_logit_rows
    want, want_logprobs = generate_alone(prompt, params, num_drafts + 1)
    draft = [t if i < num_right else (t + 1) % 9 for i, t in enumerate(want[:num_drafts])]
    toy = make_toy(max_num_seqs=2, max_model_len=128, max_tokens=128)
    blocks = {"other": [1], "r": list(range(2, 2 + 128 // BLOCK))}
    toy.runner.execute_model(
        SchedulerOutput(
            step_id=0,
            new_requests=[
                NewRequestData(
                    request_id=name,
                    token_ids=prompt,
                    num_prompt_tokens=len(prompt),
                    block_ids=(block_ids,),
                    num_computed_tokens=0,
                    sampling_params=params,
                )
                for name, block_ids in blocks.items()
            ],
            num_scheduled_tokens={"other": len(prompt), "r": len(prompt) + num_drafts},
            total_num_scheduled_tokens=2 * len(prompt) + num_drafts,
            scheduled_drafts={"r": draft},
            samples=list(blocks),
        )
    )
    output = toy.runner.sample_tokens(None)
    assert output.sampled_token_ids == [want[:1], want[: num_right + 1]]
    found = output.logprobs["r"].logprobs
    assert len(found) == num_right + 1
    for got, logprobs in zip(found, want_logprobs):
        np.testing.assert_array_equal(got, logprobs.logprobs[0])
