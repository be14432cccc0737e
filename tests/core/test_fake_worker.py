"""The fake worker notices what it is there to notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.contracts.messages import FinishReason
from octavo.contracts.step import NewRequestData, SchedulerOutput
from tests.core.fake_worker import EOS, POISON, FakeModel, FakeWorker, kv_config, make_request


def new(request_id: str, prompt: list[int], blocks: list[int], computed: int = 0) -> NewRequestData:
    wire = make_request(request_id, prompt, max_tokens=9)
    return NewRequestData(
        request_id=request_id,
        token_ids=list(prompt),
        num_prompt_tokens=len(prompt),
        block_ids=(blocks,),
        num_computed_tokens=computed,
        sampling_params=wire.sampling_params,
    )


def step_of(step_id: int, request: NewRequestData, count: int, **more: object) -> SchedulerOutput:
    samples = [request.request_id] if more.pop("samples", True) else []
    return SchedulerOutput(
        step_id=step_id,
        new_requests=[request],
        num_scheduled_tokens={request.request_id: count},
        total_num_scheduled_tokens=count,
        samples=samples,
        **more,  # type: ignore[arg-type]
    )


def worker() -> FakeWorker:
    """One that holds request "a": 20 tokens in blocks 1 and 2."""
    made = FakeWorker(kv_config(9))
    made.execute(step_of(0, new("a", [7] * 20, [1, 2]), 20))
    return made


def test_shared_blocks_and_right_prefixes_pass() -> None:
    made = worker()
    output = made.execute(step_of(1, new("b", [7] * 18, [1, 3], computed=16), 2))
    assert output.request_ids == ["b"]
    request = make_request("b", [7] * 18, max_tokens=1)
    assert output.sampled_token_ids == [made.model.generate(request, 100)[0]]


@pytest.mark.parametrize(
    "step",
    [
        step_of(1, new("b", [8] * 18, [1, 3], computed=16), 2),  # another prompt's block
        step_of(1, new("b", [7] * 18, [4, 3], computed=16), 2),  # a block nobody filled
        step_of(1, new("b", [7] * 34, [1, 2, 3], computed=32), 2),  # filled in part
        step_of(1, new("b", [7] * 18, [0, 3], computed=16), 2),  # the null block
        step_of(1, new("b", [7] * 18, [1, 0], computed=16), 2),  # written to the null block
        step_of(1, new("a", [7] * 18, [1, 3], computed=16), 2),  # known already
        step_of(1, new("b", [7] * 18, [1, 3], computed=16), 3),  # more tokens than known
        step_of(1, new("b", [7] * 18, [1, 3], computed=16), 1),  # not the last, and sampled
        step_of(1, new("b", [7] * 18, [1, 3], computed=16), 2, samples=False),
        step_of(1, new("b", [7] * 5, [3]), 5, preempted_request_ids=["nobody"]),
    ],
)
def test_wrong_steps_do_not(step: SchedulerOutput) -> None:
    with pytest.raises(AssertionError):
        worker().execute(step)


def overwrite(made: FakeWorker) -> None:
    made.execute(step_of(1, new("b", [8] * 3, [1]), 3))


def skip_a_token(made: FakeWorker) -> None:
    made.rows["a"].num_computed += 1


@pytest.mark.parametrize("harm", [overwrite, skip_a_token])
def test_the_owner_notices(harm: Callable[[FakeWorker], None]) -> None:
    made = worker()
    harm(made)
    step = SchedulerOutput(
        step_id=2, num_scheduled_tokens={"a": 1}, total_num_scheduled_tokens=1, samples=["a"]
    )
    step.cached_requests.request_ids = ["a"]
    step.cached_requests.num_computed_tokens = [20]
    with pytest.raises(AssertionError):
        made.execute(step)


def test_rubbish_spreads_to_all_who_read_it() -> None:
    made = FakeWorker(kv_config(9), fails=lambda step_id, request_id: request_id == "a")
    output = made.execute(step_of(0, new("a", [7] * 20, [1, 2]), 20))
    assert output.errors == {"a": "failed in step 0"}
    output = made.execute(step_of(1, new("b", [7] * 18, [1, 3], computed=16), 2))
    assert made.pages[3][0] == (POISON, POISON)
    request = make_request("b", [7] * 18, max_tokens=1)
    assert output.sampled_token_ids != [made.model.generate(request, 100)[0]]


def test_the_model_knows_how_a_request_ends() -> None:
    model = FakeModel(5)
    ends = set()
    for seed in range(20):
        tokens, reason, stop = model.generate(
            make_request("r", [1], seed=seed, stop_token_ids=[2], max_tokens=2), 100
        )
        ends.add((reason, stop))
        assert (tokens[-1] == EOS) == (reason is FinishReason.STOP and stop is None)
    assert ends == {(FinishReason.STOP, None), (FinishReason.STOP, 2), (FinishReason.LENGTH, None)}
